"""Run the promises of ``tests/crash/test_versions.py`` on each version of Spark; print a table.

Each version gets a folder of its own, ``.work/versions/<version>``, with its PySpark and the Py4J
that goes with it; all else is that of ``.venv``, in front of which the folder is put. What fails
makes the exit code 1. ``--write`` puts the table into docs/versions.md.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".work" / "versions"
PAGE = ROOT / "docs" / "versions.md"
TESTS = "tests/crash/test_versions.py"
VERSIONS = ("3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
"""The newest release of each version in the range."""
ROWS = {
    "test_batch": "BATCH",
    "test_drain": "streaming with windows, drain",
    "test_join": "outer join, drain",
    "test_kill_and_resume": "`kill -9`, resume",
    "test_savepoint_and_restore": "savepoint, restore",
    "test_query_and_diff_of_state": "state query, diff",
    "test_other_partitions": "another number of state partitions",
    "test_transform_with_state": "`transformWithStateInPandas`",
    "test_sources_in_python": "sources written in Python",
}
FAILED = "**no**"
MARKS = ("<!-- table of make test-versions -->", "<!-- end of the table -->")
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
_OURS = ("SPARK_STREAM_CACHE",)

Outcomes = dict[str, str]


class VersionsError(Exception):
    """One line that says what is missing."""


def main(argv: Sequence[str] | None = None) -> int:
    """Install what is missing, run the tests on each version, print the table."""
    arguments = _parser().parse_args(argv)
    wanted = arguments.versions or list(VERSIONS)
    try:
        for version in wanted:
            run_on(version, arguments.pytest)
    except VersionsError as error:
        print(f"versions: {error}", file=sys.stderr)
        return 1
    before = [each for each in VERSIONS if arguments.write and report_of(each).exists()]
    results = {each: outcomes_in(report_of(each)) for each in sorted({*before, *wanted})}
    lines = table(results)
    print("\n".join(lines))
    if arguments.write:
        write(lines)
    failed = any(FAILED in found.values() or not found for found in results.values())
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="What holds on which version of Spark.")
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"default: {VERSIONS}")
    text = f"put the table into {PAGE.name}; versions that were not run are as they were run last"
    parser.add_argument("--write", action="store_true", help=text)
    text = "an option of pytest's, such as --pytest=-k=drain; may be repeated"
    parser.add_argument("--pytest", action="append", default=[], metavar="OPTION", help=text)
    return parser


def say(step: str) -> None:
    """Print one step."""
    print(f"versions: {step}", flush=True)


def install(version: str) -> Path:
    """Return the folder with a PySpark; made if it is not there, whole or not at all.

    Raises:
        VersionsError: pip could not.
    """
    folder = FOLDER / version
    if folder.is_dir():
        return folder
    say(f"installing PySpark {version}")
    unfinished = FOLDER / f"{version}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    command = [*PIP, "install", "--quiet", "--target", str(unfinished), f"pyspark=={version}"]
    done = subprocess.run(command, check=False)
    if done.returncode != 0:
        msg = f"PySpark {version} could not be installed into {unfinished}"
        raise VersionsError(msg)
    unfinished.replace(folder)
    return folder


def report_of(version: str) -> Path:
    """Return the file in which pytest reports on a version."""
    return FOLDER / f"{version}.xml"


def run_on(version: str, options: Sequence[str]) -> None:
    """Run the tests on one version."""
    folder = install(version)
    report = report_of(version)
    report.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "pytest", TESTS, "-q", "-p", "no:cacheprovider"),
        # What an older PySpark imports may be deprecated in a newer Python.
        *("-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning"),
        *("--junitxml", str(report), "-o", "junit_family=xunit1"),
        *options,
    ]
    began = time.monotonic()
    say(f"Spark {version}")
    subprocess.run(command, cwd=ROOT, env=environment_of(folder), check=False)
    say(f"Spark {version}: {time.monotonic() - began:.0f} s")


def environment_of(folder: Path) -> dict[str, str]:
    """Return the environment in which the PySpark of a folder is the one that is imported."""
    inherited = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYSPARK_", "SPARK_")) or key in _OURS
    }
    # Archives of classes are of one Spark each, and the newest replaces the others of its folder.
    cache = {"SPARK_STREAM_CACHE": f"{folder}.cache"}
    return {**inherited, **cache, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def outcomes_in(report: Path) -> Outcomes:
    """Return what each test has found, of all its cases the worst; nothing of what has not run."""
    found: Outcomes = {}
    if not report.exists():
        return found
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - as above
        name = str(case.get("name")).partition("[")[0]
        noted = [each.get("value") for each in case.iter("property")]
        has_failed = case.find("failure") is not None or case.find("error") is not None
        if has_failed or not noted:
            found[name] = FAILED
        elif found.get(name) != FAILED:
            found[name] = str(noted[-1])
    return found


def table(results: Mapping[str, Outcomes]) -> list[str]:
    """Return the table as lines of Markdown; what was not run is left empty."""
    rows = [
        f"| {label} | {' | '.join(each.get(test, '') for each in results.values())} "
        f"| `-k {test.removeprefix('test_')}` |"
        for test, label in ROWS.items()
    ]
    return [
        f"| | {' | '.join(results)} | test |",
        f"|---|{'---|' * len(results)}---|",
        *rows,
    ]


def write(lines: Sequence[str]) -> None:
    """Put the table between its marks on the page."""
    begin, end = map(re.escape, MARKS)
    text = PAGE.read_text(encoding="utf-8")
    made = "\n".join([MARKS[0], *lines, MARKS[1]])
    PAGE.write_text(re.sub(rf"(?s){begin}.*?{end}", lambda _: made, text), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
