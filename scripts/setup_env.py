"""Make the development environment: ``.venv`` with everything pinned, and a Java for Spark.

Runs on any Python from 3.8 on, needs nothing but the standard library, and may be run again at
any time: it does only what is missing. ``PYTHON`` in the environment chooses the interpreter.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".installed"  # the Makefile compares its age with INPUTS
UNFINISHED = VENV / ".unfinished"  # left by an installation that was killed: start afresh
INPUTS = ("pyproject.toml", "constraints.txt", "scripts/setup_env.py")

SUPPORTED = ((3, 10), (3, 11), (3, 12), (3, 13))  # as requires-python in pyproject.toml says
MINIMUM_JAVA = 17
JAVA_PACKAGES = (
    "openjdk-17-jre-headless",
    "openjdk-21-jre-headless",
    "openjdk-25-jre-headless",
    "default-jre-headless",
)
# The program behind a launcher or an environment: it must outlive the .venv that is replaced.
PROBE = (
    "import sys; print(sys.version_info[0], sys.version_info[1], "
    "getattr(sys, '_base_executable', '') or sys.executable)"
)


class SetupError(Exception):
    """One line that says what is missing and what to do about it."""


def main() -> int:
    """Make the environment and say each step in one line."""
    try:
        ensure_java()
        ensure_venv()
        ensure_packages()
        ensure_pyspark_files()
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    STAMP.write_text(fingerprint(), encoding="utf-8")
    say("ready: .venv")
    return 0


def say(step: str) -> None:
    """Print one step."""
    print(f"setup: {step}", flush=True)


# --- Java -------------------------------------------------------------------------------------


def ensure_java() -> None:
    """Find a Java that can run Spark, or install one where that is ours to do."""
    home = os.environ.get("JAVA_HOME")
    java = Path(home) / "bin" / "java" if home else shutil.which("java")
    version = java_version(java)
    if home and version < MINIMUM_JAVA:
        raise SetupError(
            f"JAVA_HOME={home} is {describe_java(version)}; Spark needs Java {MINIMUM_JAVA} or "
            "newer: point JAVA_HOME at one, or unset it"
        )
    if version < MINIMUM_JAVA:
        install_java(version)
        version = java_version(shutil.which("java"))
    if version < MINIMUM_JAVA:
        raise SetupError(
            f"`java` is still {describe_java(version)}: point JAVA_HOME at a Java "
            f"{MINIMUM_JAVA} or newer"
        )
    say(f"Java {version}")


def java_version(java: str | Path | None) -> int:
    """Return the major version of a ``java`` program, 0 if there is none that runs."""
    if java is None:
        return 0
    # `java -version` writes to stderr: openjdk version "17.0.15" or, up to Java 8, "1.8.0_402".
    found = re.search(r'version "(?:1\.)?(\d+)', output_of([str(java), "-version"]))
    return int(found.group(1)) if found else 0


def describe_java(version: int) -> str:
    """Name what was found, for an error."""
    return f"Java {version}" if version else "no Java that runs"


def install_java(found: int) -> None:
    """Install the first Java package that this Debian has."""
    if not can_install():
        raise SetupError(
            f"Spark needs Java {MINIMUM_JAVA} or newer (found: {describe_java(found)}): install "
            f"one, for example the package {JAVA_PACKAGES[0]}, or set JAVA_HOME"
        )
    say("Java is missing: installing it")
    apt_install(JAVA_PACKAGES)


# --- Debian's packages --------------------------------------------------------------------------


def can_install() -> bool:
    """Whether this is a Debian-like system and we are root."""
    return shutil.which("apt-get") is not None and os.geteuid() == 0


def apt_install(candidates: tuple[str, ...]) -> None:
    """Install the first of *candidates* that the system's package lists know."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    quietly(["apt-get", "update", "-qq"], environment, "the package lists could not be fetched")
    for package in candidates:
        policy = output_of(["apt-cache", "policy", package])
        if "Candidate:" in policy and "Candidate: (none)" not in policy:
            command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
            quietly(command, environment, f"{package} could not be installed")
            return
    raise SetupError(f"this system's package lists have none of: {', '.join(candidates)}")


# --- Python -------------------------------------------------------------------------------------


def ensure_venv() -> None:
    """Keep the environment if it works, else make a new one."""
    wanted = os.environ.get("PYTHON")
    if venv_works() and (not wanted or probe(wanted)[:2] == probe(str(VENV_PYTHON))[:2]):
        say(f"Python {dotted(probe(str(VENV_PYTHON)))} in .venv")
        return
    python = find_python(wanted)
    ensure_ensurepip(python)
    say(f"making .venv with Python {dotted(probe(python))} ({python})")
    if VENV.is_symlink() or VENV.is_file():
        VENV.unlink()
    shutil.rmtree(VENV, ignore_errors=True)
    quietly([python, "-m", "venv", str(VENV)], None, ".venv could not be made")


def venv_works() -> bool:
    """Whether ``.venv`` was finished, runs a supported Python and has pip."""
    if UNFINISHED.exists() or probe(str(VENV_PYTHON))[:2] not in SUPPORTED:
        return False
    # A moved or copied environment still runs, but installs into the location it came from.
    prefix = output_of([str(VENV_PYTHON), "-c", "import sys, pip; print(sys.prefix)"])
    return Path(prefix.strip() or os.sep).resolve() == VENV.resolve() and scripts_are_ours()


def scripts_are_ours() -> bool:
    """Whether the environment's scripts start its own Python."""
    pip = VENV / "bin" / "pip"
    if not pip.is_file():
        return False
    # After a long path the first line is #!/bin/sh, and the second names the Python.
    return os.fsencode(str(VENV)) in b"".join(pip.read_bytes().splitlines()[:2])


def find_python(wanted: str | None) -> str:
    """Return the interpreter to use: *wanted*, else this one, else the newest on the path."""
    if wanted:
        if probe(wanted)[:2] not in SUPPORTED:
            raise SetupError(f"PYTHON={wanted} is not a Python {supported_range()} that runs")
        return resolved(wanted)
    names = [sys.executable, *(f"python{dotted(v)}" for v in reversed(SUPPORTED))]
    usable = [name for name in names if probe(name)[:2] in SUPPORTED]
    if not usable:
        this = dotted(sys.version_info[:2])
        raise SetupError(
            f"Python {supported_range()} is needed, this is {this}: "
            "install one and set PYTHON to it"
        )
    programs = [resolved(name) for name in usable]
    return next(filter(has_ensurepip, programs), programs[0])


def probe(python: str) -> tuple[int, ...]:
    """Return the (major, minor) version of an interpreter, ``()`` if it does not run."""
    words = output_of([python, "-c", PROBE], stderr=subprocess.DEVNULL).split(maxsplit=2)
    return tuple(int(word) for word in words[:2])


def resolved(python: str) -> str:
    """Return the path of the real program behind a name or a launcher script."""
    return output_of([python, "-c", PROBE], stderr=subprocess.DEVNULL).split(maxsplit=2)[2].strip()


def has_ensurepip(python: str) -> bool:
    """Whether an interpreter can make an environment with pip (Debian packages that apart)."""
    return "yes" in output_of([python, "-c", "import venv, ensurepip; print('yes')"])


def ensure_ensurepip(python: str) -> None:
    """Install Debian's venv package if the interpreter lacks the modules."""
    if has_ensurepip(python):
        return
    package = f"python{dotted(probe(python))}-venv"
    if can_install():
        say("the venv module is missing: installing it")
        apt_install((package, "python3-venv"))
    if not has_ensurepip(python):
        raise SetupError(f"{python} has no venv module: install {package}, or set PYTHON")


def dotted(version: tuple[int, ...]) -> str:
    """Return ``3.11`` for (3, 11)."""
    return f"{version[0]}.{version[1]}"


def supported_range() -> str:
    """Return the supported versions for an error."""
    return f"{dotted(SUPPORTED[0])} to {dotted(SUPPORTED[-1])}"


# --- packages -----------------------------------------------------------------------------------


def ensure_packages() -> None:
    """Install the project and its tools at their pinned versions."""
    if STAMP.exists() and STAMP.read_text(encoding="utf-8") == fingerprint():
        say("packages are up to date")
        return
    STAMP.unlink(missing_ok=True)
    say("installing the packages (a few minutes the first time)")
    pip_install("pip")  # the pinned one knows dependency groups; an old one may not
    pip_install("--editable", ".", "--group", "dev")


def pip_install(*arguments: str) -> None:
    """Run pip with our constraints, and leave a mark if it is killed."""
    options = ["-qq", "--disable-pip-version-check", "--no-input", "--constraint"]
    command = [str(VENV_PYTHON), "-m", "pip", "install", *options, "constraints.txt", *arguments]
    UNFINISHED.touch()
    try:
        quietly(command, None, "the packages could not be installed")
    except SetupError:
        UNFINISHED.unlink()  # pip has failed in order and cleaned up
        raise
    UNFINISHED.unlink()


def fingerprint() -> str:
    """Return a digest of everything the installation depends on."""
    digest = hashlib.sha256(str(ROOT).encode())
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def ensure_pyspark_files() -> None:
    """Put PySpark's own files back where pyspark-client has overwritten them.

    Both distributions fill the folder ``pyspark``, the one installed last wins, and Spark's
    workers fail in odd ways when the files are of another version than its jars.
    """
    for record in sorted(VENV.glob("lib/python*/site-packages/pyspark-[0-9]*.dist-info/RECORD")):
        if not is_intact(record):
            version = record.parent.name[len("pyspark-") : -len(".dist-info")]
            say(f"restoring the files of pyspark {version}")
            pip_install("--force-reinstall", "--no-deps", f"pyspark=={version}")


def is_intact(record: Path) -> bool:
    """Whether the Python files that an installation's RECORD lists are as it says."""
    with record.open(newline="", encoding="utf-8") as lines:
        rows = [row for row in csv.reader(lines) if row[0].endswith(".py") and row[1]]
    site_packages = record.parent.parent
    return all(digest_of(site_packages / name) == digest for name, digest, _ in rows)


def digest_of(path: Path) -> str:
    """Return a file's digest as RECORD writes it, empty if the file is gone."""
    if not path.is_file():
        return ""
    digest = hashlib.sha256(path.read_bytes()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


# --- processes ----------------------------------------------------------------------------------


def output_of(command: list[str], stderr: int = subprocess.STDOUT) -> str:
    """Return what a program prints in English, empty if it fails."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            check=False,
            cwd=ROOT,
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError:
        return ""
    return "" if done.returncode else done.stdout


def quietly(command: list[str], environment: dict[str, str] | None, failure: str) -> None:
    """Run a program; only if it fails show what it said, then *failure*."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    if done.returncode:
        print(done.stdout.strip(), file=sys.stderr)
        raise SetupError(failure)


if __name__ == "__main__":
    sys.exit(main())
