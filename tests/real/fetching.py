"""Fetches what the real counterparts are made of, once, into ``.work``; else the tests are skipped.

A pom or a ``go.mod`` beside the tests pins the versions. Nothing that was fetched is committed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from scripts import versions

WORK = Path(__file__).resolve().parents[2] / ".work" / "real"
FETCH_S = 600.0
BUILD_S = 1500.0  # a large program of Go on two cores


def jars_of(pom: Path, **properties: str) -> list[Path]:
    """Return the jars of a pom; without Maven or its registry the test is skipped.

    *properties* of the pom have other values, such as another version.
    """
    options = [f"-D{name}={value}" for name, value in sorted(properties.items())]

    def copy(folder: Path) -> None:
        command = ["mvn", "-q", "-B", "-f", str(pom), *options, "dependency:copy-dependencies"]
        _run(pom.parent.name, [*command, f"-DoutputDirectory={folder}"], seconds=FETCH_S)

    return sorted(_made(pom, " ".join(options), copy).glob("*.jar"))


def program_of(
    module: Path, package: str, *, strings: Mapping[str, str] | None = None, is_static: bool = False
) -> Path:
    """Return a program of Go, built from a package of a ``go.mod``'s requirements.

    Without Go or its registry the test is skipped. *strings* are variables of the program, which
    links no library of C if it *is_static*.
    """
    flags = ["-s", "-w", *(f"-X {name}={value}" for name, value in (strings or {}).items())]
    environ = {"CGO_ENABLED": "0"} if is_static else {}

    def build(folder: Path) -> None:
        folder.mkdir()
        shutil.copy(module, folder / "go.mod")
        # The file names what is required directly; Go adds the rest to its copy.
        command = ["go", "build", "-C", str(folder), "-mod=mod", "-trimpath"]
        options = [f"-ldflags={' '.join(flags)}", "-o", "program"]
        _run(module.parent.name, [*command, *options, package], seconds=BUILD_S, environ=environ)

    more = " ".join([package, *flags[2:], *environ])
    return _made(module, more, build) / "program"


def debian_packages(names: Path) -> Path:
    """Return a folder with the files of Debian's packages, one a line; none is installed.

    Without Debian's tools or its registry the test is skipped.
    """
    what = names.parent.name

    def fetch(folder: Path) -> None:
        folder.mkdir()
        chosen = names.read_text().split()
        _run(what, ["apt-get", "download", *chosen], seconds=FETCH_S, folder=folder)
        for archive in sorted(folder.glob("*.deb")):
            _run(what, ["dpkg-deb", "--extract", str(archive), str(folder)], seconds=FETCH_S)

    return _made(names, "", fetch)


def python_packages(requirements: Path) -> Path:
    """Return a folder with packages of Python, without what they depend on.

    Without PyPI the test is skipped.
    """

    def install(folder: Path) -> None:
        options = ["-q", "--no-deps", "--no-compile", "--target", str(folder)]
        command = [sys.executable, "-m", "pip", "install", *options, "-r", str(requirements)]
        _run(requirements.parent.name, command, seconds=FETCH_S)

    return _made(requirements, "", install)


def _made(recipe: Path, more: str, make: Callable[[Path], None]) -> Path:
    """Return the folder that was made by a recipe, once for each content of it."""
    digest = hashlib.sha256(recipe.read_bytes() + more.encode()).hexdigest()
    name = f"{recipe.parent.name}-{digest[:12]}"
    folder = WORK / name
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            unfinished = WORK / f"{name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            make(unfinished)
            unfinished.replace(folder)
    return folder


def _run(
    what: str,
    command: Sequence[str],
    *,
    seconds: float,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> None:
    tool = shutil.which(command[0])
    if tool is None:
        pytest.skip(f"{what}: no {command[0]} here")
    try:
        done = subprocess.run(
            [tool, *command[1:]],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env={**os.environ, **(environ or {})},
            cwd=folder,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{what}: {command[0]} has not fetched it in {seconds:.0f} s")
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).splitlines()
        why = next((line for line in lines if "ERROR" in line), lines[-1] if lines else "")
        pytest.skip(f"{what}: {command[0]} cannot fetch it: {why[:300]}")


def pyspark_of(version: str) -> Path:
    """Return the folder with a PySpark of this version; without PyPI the test is skipped."""
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / f"pyspark-{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return versions.install(version)
        except versions.VersionsError as error:
            pytest.skip(str(error))
