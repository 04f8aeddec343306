"""Build the wheel, install it into empty environments with Airflow, and try it there.

The tests run on the checkout, which has every file. A user has the wheel alone, and none of the
packages that only tests need. So this installs the wheel without extras: with the newest Airflow at
the versions of ``constraints.txt``, and with older ones (``--airflow``) at the versions that
``airflow_versions.py`` pins. In each environment it imports all modules and example DAGs, compares
the provider information with that Airflow's schema, asks Airflow for its providers, and starts
``spark-stream``. Everything is in a temporary directory, which is removed at the end.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import airflow_versions

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
DISTRIBUTION = "airflow-provider-spark-streaming"
PACKAGE = "airflow_provider"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
EXAMPLES = f"{PACKAGE}/example_dags/"
NEWEST: Final = "newest"
"""The Airflow of ``constraints.txt``."""
# What pip prints when an index does not answer, or does not have the pinned version.
NOT_DOWNLOADED = re.compile(
    r"No matching distribution found for (\S+)|(Max retries exceeded|Connection refused|Network is "
    r"unreachable|Temporary failure in name resolution)"
)
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
# The folder of the example DAGs is its argument. Their jobs are imported by Spark's drivers alone.
IMPORT_EXAMPLES = """\
import pathlib, runpy, sys
from airflow_provider.runtime.api.errors import ConfigError
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.py")):
    try:
        runpy.run_path(str(path))
    except ConfigError as error:
        if "upgrade Airflow" not in str(error):
            raise
        print(f"newer:{path.name}")
    else:
        print(f"good:{path.name}")
"""
VALIDATE = """\
import json, pathlib, airflow, jsonschema
from airflow_provider import get_provider_info
path = pathlib.Path(airflow.__file__).with_name("provider_info.schema.json")
schema = json.loads(path.read_text())
jsonschema.Draft7Validator.check_schema(schema)
jsonschema.Draft7Validator(schema).validate(get_provider_info())
print(airflow.__version__)
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


class SkipError(Exception):
    """One line that says what could not be downloaded."""


def main() -> int:
    """Build the wheel and try it with each Airflow; return 0 when all is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "--airflow", nargs="+", choices=[*airflow_versions.PINS, NEWEST], default=[NEWEST]
    )
    began = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="check-wheel-") as name:
            wheel = build(Path(name) / "dist")
            for airflow in parser.parse_args().airflow:
                try_with(airflow, wheel, Path(name) / airflow)
    except WheelError as error:
        print(f"wheel: {error}", file=sys.stderr)
        return 1
    print(f"wheel: good, in {time.perf_counter() - began:.0f} s")
    return 0


def try_with(airflow: str, wheel: Path, scratch: Path, source: Path = ROOT) -> str | None:
    """Try the wheel with an Airflow, and print a line if that cannot be downloaded.

    Args:
        airflow: a key of ``PINS``, or NEWEST.
        wheel: the file.
        scratch: a folder that may not exist yet.
        source: the checkout that the wheel was built from.

    Returns:
        The Python of the environment in *scratch*, or None if it was skipped.

    Raises:
        WheelError: a step has failed; what it printed is shown.
    """
    try:
        return check(airflow, wheel, scratch, source)
    except SkipError as error:
        say(f"skipped Airflow {airflow}: {error}")
        return None


def check(airflow: str, wheel: Path, scratch: Path, source: Path) -> str:
    """Install the wheel with an Airflow and try it, all of it in *scratch*.

    Returns:
        The Python of the environment.

    Raises:
        SkipError: that Airflow cannot be downloaded.
        WheelError: a step has failed; what it printed is shown.
    """
    left_out = {*NEEDS_PYTEST, *NEEDS_ITS_EXTRA}
    modules = [name for name in modules_of(wheel, source) if name not in left_out]
    scratch.mkdir(parents=True, exist_ok=True)
    python = install(airflow, wheel, scratch / "env")
    environment = environment_of(scratch)

    def run(*command: str) -> str:
        return output_of(command, environment=environment, folder=scratch)

    say(f"importing {len(modules)} modules")
    run(python, "-c", IMPORT_ALL, *modules)
    version = run(python, "-c", VALIDATE).split()[-1]
    say(f"the schema of Airflow {version} accepts the provider information")
    expected = f"{DISTRIBUTION}=={wheel.name.split('-')[1]}"
    providers = run(python, "-c", LIST_PROVIDERS).split()
    if expected not in providers:
        raise WheelError(f"Airflow does not list {expected}, only {', '.join(providers)}")
    say("Airflow lists the provider")
    (site,) = (scratch / "env").glob("lib/python*/site-packages")
    # Airflow may print warnings between the lines.
    lines = run(python, "-c", IMPORT_EXAMPLES, str(site / EXAMPLES)).splitlines()
    newer = [line.removeprefix("newer:") for line in lines if line.startswith("newer:")]
    if newer and airflow == NEWEST:
        raise WheelError(f"the newest Airflow is too old for {', '.join(newer)}")
    say(f"imported {sum(line.startswith('good:') for line in lines)} example DAGs")
    if newer:
        say(f"a newer Airflow is needed by {', '.join(newer)}")
    usage = run(str(Path(python).with_name("spark-stream")), "--help")
    if "usage: spark-stream" not in usage:
        raise WheelError(f"spark-stream --help says {usage[:200]!r}")
    say("spark-stream starts")
    return python


def say(step: str) -> None:
    """Print one step."""
    print(f"wheel: {step}", flush=True)


def build(folder: Path) -> Path:
    """Return the wheel of this checkout, made in *folder* by the backend that pyproject names."""
    say("building")
    command = [*PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder)]
    output_of([*command, "--build-constraint", str(CONSTRAINTS), str(ROOT)])
    (wheel,) = folder.glob("*.whl")
    return wheel


def modules_of(wheel: Path, source: Path) -> list[str]:
    """Return the names of all modules in the wheel, without its example DAGs.

    Raises:
        WheelError: it lacks a file of the package or of ``dags/`` in *source*, or has another one.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = files_of(source / PACKAGE, f"{PACKAGE}/") | files_of(source / "dags", EXAMPLES)
    if names != expected:
        raise WheelError(f"wheel and checkout differ in {', '.join(sorted(names ^ expected))}")
    modules = (name for name in names if name.endswith(".py") and not name.startswith(EXAMPLES))
    paths = [Path(name).with_suffix("") for name in modules]
    return sorted(".".join(path.parts).removesuffix(".__init__") for path in paths)


def files_of(folder: Path, prefix: str) -> set[str]:
    """Return the paths in a wheel of all files of a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {
        prefix + path.relative_to(folder).as_posix()
        for path in files
        if path.parent.name != "__pycache__"
    }


def install(airflow: str, wheel: Path, folder: Path) -> str:
    """Return the Python of a new environment that has the wheel, and only what the wheel asks for.

    Not even pip is in it, so that nothing is there by chance: the pip of this environment installs.

    Raises:
        SkipError: the Airflow cannot be downloaded.
        WheelError: the wheel cannot be installed with it.
    """
    say(f"installing it with Airflow {airflow}")
    venv.create(folder, with_pip=False)
    python = str(folder / "bin" / "python")
    into = [*PIP, "--python", python]
    wanted: Sequence[str] = (
        ["--constraint", str(CONSTRAINTS)] if airflow == NEWEST else airflow_versions.PINS[airflow]
    )
    command = [*into, "install", "--quiet", "--no-compile", *wanted, str(wheel)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode and (found := NOT_DOWNLOADED.search(done.stderr)):
        raise SkipError(found[0])
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        raise WheelError(f"it cannot be installed with Airflow {airflow}")
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
