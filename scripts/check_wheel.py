"""Build the wheel, install it into an empty environment with Airflow, and look at what is there.

The tests run on the checkout itself, where every file lies. A user has the wheel alone, and none of
the packages that only tests need. So here the wheel is installed without extras, at the versions of
``constraints.txt``; all its modules are imported, Airflow is asked for its providers, and
``spark-stream`` is started. Everything lies in a temporary directory, which is removed at the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
DISTRIBUTION = "airflow-provider-spark-streaming"
PACKAGE = "airflow_provider"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
# They are made of tests: who uses them has pytest, which is no dependency of the package.
NEEDS_PYTEST = tuple(
    f"{PACKAGE}.runtime.testing.{module}"
    for module in ("launchers", "sink_bench", "sinks", "sources", "storages")
)
# They extend classes of pyiceberg's, and are imported where a table's files are opened.
NEEDS_ITS_EXTRA = tuple(f"{PACKAGE}.extensions.iceberg.{m}" for m in ("file_rows", "lent_io"))

# Runs in the new environment, with the names of modules as its arguments.
IMPORT_ALL = """\
import importlib, pathlib, sys, traceback
failed = 0
for name in sys.argv[1:]:
    try:
        module = importlib.import_module(name)
    except BaseException:
        failed += 1
        print(f"{name} cannot be imported", file=sys.stderr)
        traceback.print_exc()
    else:
        location = pathlib.Path(module.__file__)
        if pathlib.Path(sys.prefix) not in location.parents:
            failed += 1
            print(f"{name} comes from {location}, not from the wheel", file=sys.stderr)
sys.exit(1 if failed else 0)
"""
# What `airflow providers list` does, which finds providers by their entry points and reads them by
# its schema; the command itself is deprecated, and mixes warnings with its answer.
LIST_PROVIDERS = """\
from airflow.providers_manager import ProvidersManager
for name, provider in ProvidersManager().providers.items():
    print(f"{name}=={provider.version}")
"""


class WheelError(Exception):
    """One line that says what is wrong with the wheel."""


def main() -> int:
    """Build, install and look; return 0 when all is as it should be."""
    began = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="check-wheel-") as name:
            check(Path(name))
    except WheelError as error:
        print(f"wheel: {error}", file=sys.stderr)
        return 1
    print(f"wheel: good, in {time.perf_counter() - began:.0f} s")
    return 0


def check(scratch: Path) -> None:
    """Build the wheel, install it and try it, all of it in *scratch*.

    Raises:
        WheelError: a step has failed; what it printed is shown.
    """
    wheel = build(scratch / "dist")
    modules = [name for name in modules_of(wheel) if name not in {*NEEDS_PYTEST, *NEEDS_ITS_EXTRA}]
    python = install(wheel, scratch / "env")
    environment = environment_of(scratch)

    def run(*command: str) -> str:
        return output_of(command, environment=environment, folder=scratch)

    say(f"importing {len(modules)} modules")
    run(python, "-c", IMPORT_ALL, *modules)
    say("asking Airflow for its providers")
    expected = f"{DISTRIBUTION}=={wheel.name.split('-')[1]}"
    providers = run(python, "-c", LIST_PROVIDERS).split()
    if expected not in providers:
        raise WheelError(f"Airflow does not list {expected}, only {', '.join(providers)}")
    say("starting spark-stream")
    usage = run(str(Path(python).with_name("spark-stream")), "--help")
    if "usage: spark-stream" not in usage:
        raise WheelError(f"spark-stream --help says {usage[:200]!r}")


def say(step: str) -> None:
    """Print one step."""
    print(f"wheel: {step}", flush=True)


def build(folder: Path) -> Path:
    """Return the wheel of this checkout, made in *folder* by the backend that pyproject names."""
    say("building it")
    command = [*PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder)]
    output_of([*command, "--build-constraint", str(CONSTRAINTS), str(ROOT)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def modules_of(wheel: Path) -> list[str]:
    """Return the names of all modules in the wheel.

    Raises:
        WheelError: it lacks a file of the package, or has one that the checkout has not.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    files = [path for path in (ROOT / PACKAGE).rglob("*") if path.is_file()]
    there = {str(path.relative_to(ROOT)) for path in files if path.parent.name != "__pycache__"}
    if names != there:
        raise WheelError(f"wheel and checkout differ in {', '.join(sorted(names ^ there))}")
    paths = [Path(name).with_suffix("") for name in names if name.endswith(".py")]
    return sorted(".".join(path.parts).removesuffix(".__init__") for path in paths)


def install(wheel: Path, folder: Path) -> str:
    """Return the Python of a new environment that has the wheel, and only what the wheel asks for.

    Not even pip is in it, so that nothing is there by chance: the pip of this environment installs.
    """
    say("installing it with Airflow")
    venv.create(folder, with_pip=False)
    python = str(folder / "bin" / "python")
    into = [*PIP, "--python", python]
    constraints = ["--constraint", str(CONSTRAINTS)]
    output_of([*into, "install", "--quiet", "--no-compile", *constraints, str(wheel)])
    output_of([*into, "check"])
    return python


def environment_of(scratch: Path) -> dict[str, str]:
    """Return variables in which neither the checkout nor another Airflow is known."""
    ours = ("AIRFLOW", "PYTHON", "SPARK", "VIRTUAL_ENV")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    return {**inherited, "AIRFLOW_HOME": str(scratch / "airflow"), "TMPDIR": str(scratch)}


def output_of(
    command: list[str] | tuple[str, ...],
    *,
    environment: dict[str, str] | None = None,
    folder: Path = ROOT,
) -> str:
    """Return what a program writes to its standard output.

    Args:
        command: the program and its arguments.
        environment: its variables; None for those of this process.
        folder: where it starts.

    Raises:
        WheelError: it ends with another code than 0; both its outputs are shown.
    """
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        raise WheelError(
            f"exit code {done.returncode} of {Path(command[0]).name} {command[1]} {command[2]}"
        )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
