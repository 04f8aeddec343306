"""Fetches what the real counterparts are made of, once, into ``.work``; else the tests are skipped.

A pom beside the tests pins the versions. Nothing that was fetched is committed.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import versions

WORK = Path(__file__).resolve().parents[2] / ".work" / "real"
FETCH_S = 600.0


def jars_of(pom: Path, **properties: str) -> list[Path]:
    """Return the jars of a pom; without Maven or its registry the test is skipped.

    *properties* of the pom have other values, such as another version.
    """
    options = [f"-D{name}={value}" for name, value in sorted(properties.items())]
    digest = hashlib.sha256(pom.read_bytes() + " ".join(options).encode()).hexdigest()
    name = f"{pom.parent.name}-{digest[:12]}"
    folder = WORK / name
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            unfinished = WORK / f"{name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            _copy_dependencies(pom, unfinished, options)
            unfinished.replace(folder)
    return sorted(folder.glob("*.jar"))


def _copy_dependencies(pom: Path, folder: Path, options: list[str]) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip(f"{pom.parent.name}: no Maven here")
    command = [maven, "-q", "-B", "-f", str(pom), *options, "dependency:copy-dependencies"]
    try:
        done = subprocess.run(
            [*command, f"-DoutputDirectory={folder}"],
            capture_output=True,
            text=True,
            timeout=FETCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{pom.parent.name}: Maven has fetched nothing in {FETCH_S:.0f} s")
    if done.returncode != 0:
        why = next((line for line in done.stdout.splitlines() if "ERROR" in line), "")
        pytest.skip(f"{pom.parent.name}: Maven cannot fetch it: {why[:300]}")


def pyspark_of(version: str) -> Path:
    """Return the folder with a PySpark of this version; without PyPI the test is skipped."""
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / f"pyspark-{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return versions.install(version)
        except versions.VersionsError as error:
            pytest.skip(str(error))
