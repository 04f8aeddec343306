"""Run the same promises on each version of Spark; print a table.

Each version gets a folder of its own, ``.work/versions/<version>``, with its PySpark and the Py4J
that goes with it; all else is that of ``.venv``, in front of which the folder is put. Rows of the
table are promises. ``tests/crash/test_versions.py`` has those that are commands with a JVM each;
the others are tests of ``tests/spark`` and ``tests/extensions``, in one JVM. What fails makes the
exit code 1. ``--write`` puts the table into scripts/versions.md.
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
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".work" / "versions"
PAGE = ROOT / "scripts" / "versions.md"
COMMANDS: Final = "tests/crash/test_versions.py"
VERSIONS: Final = ("3.5.9", "4.0.5", "4.1.4", "4.2.1", "4.3.0")
"""The newest release of each version in the range."""
BESIDE: Final[Mapping[str, Sequence[str]]] = {"3.5.9": ("numpy<2", "pyarrow<26")}
"""What a PySpark needs of other versions than ``.venv`` has; docs/versions.md says why."""


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        label: what it promises.
        module: the tests' file.
        tests: their functions, or single cases of them.
    """

    label: str
    module: str
    tests: tuple[str, ...]


def _commands(label: str, *tests: str) -> Row:
    return Row(label, COMMANDS, tests)


def _streams(label: str, module: str, *tests: str) -> Row:
    return Row(label, f"tests/spark/{module}.py", tests)


def _extension(label: str, extension: str, *tests: str) -> Row:
    return Row(label, f"tests/extensions/{extension}/test_with_spark.py", tests)


ROWS: Final[Mapping[str, Row]] = {
    "batch": _commands("BATCH", "test_batch"),
    "drain": _commands("streaming with windows, drain", "test_drain"),
    "join": _commands("outer join, drain", "test_join"),
    "join-state": _streams(
        "a join keeps rows that no output needs, and writes the same rows",
        "test_skipped_eviction",
        "test_a_drain_leaves_the_rows_of_a_join_where_they_are[joined_windows-rocksdb]",
        "test_a_drain_leaves_the_rows_of_a_join_where_they_are[left_semi-rocksdb]",
        "test_an_outer_join_evicts_its_rows",
    ),
    "kill": _commands("`kill -9`, resume", "test_kill_and_resume"),
    "savepoint": _commands("savepoint, restore", "test_savepoint_and_restore"),
    "ends": _streams(
        "files that arrive during a retry, or after a time, are for the next run",
        "test_fixed_ends",
        "test_files_that_arrive_while_a_run_fails_are_for_the_next_one[one_by_one]",
        "test_files_end_at_a_time[one_by_one]",
    ),
    "late-rows": _streams(
        "late rows: counted, limited",
        "test_late_rows",
        "test_late_rows_are_said_everywhere",
        "test_late_rows_are_counted_once_over_deaths_of_drivers[drain.intended]",
        "test_nothing_is_late_in_batch",
        "test_rows_are_counted_and_not_their_groups[sliding]",
        "test_rows_are_counted_and_not_their_groups[sessions]",
        "test_too_many_late_rows_fail_the_run_before_they_are_published",
    ),
    "rows": _streams(
        "rejected records, and rows that break rules: counted, quarantined, limited",
        "test_row_checks",
        "test_rejected_records_are_kept_as_they_were",
        "test_rules_at_one_location_see_a_row_once",
        "test_a_rule_above_a_stateful_operator_splits_what_is_written[windows-streaming]",
        "test_a_rule_above_a_stateful_operator_splits_what_is_written[joined-streaming]",
        "test_a_batch_that_crosses_a_limit_is_not_published",
    ),
    "late-wait": _streams(
        '`late="wait"`: no row is late, whatever the order',
        "test_any_order",
        "test_a_stream_gives_what_a_batch_job_gives[1-2]",
        "test_the_jobs_own_watermark_waits_and_a_wish_that_cannot_be_met_is_refused",
    ),
    "read-order": _streams(
        "files are read by name",
        "test_late_rows",
        "test_files_are_read_by_name_also_by_a_run_that_is_resumed",
    ),
    "input-rows": _streams(
        "rows are counted before a reader's filter",
        "test_late_rows",
        "test_rows_are_read_before_they_are_filtered",
    ),
    "changed-jobs": _streams(
        "a changed job with state: refused or accepted",
        "test_changed_state",
        "test_what_would_mix_results_is_refused_before_anything_is_written",
        "test_what_does_not_fit_the_state_is_refused_with_its_columns",
        "test_what_changes_later_results_only_is_accepted",
    ),
    "sources": _streams(
        "sources added, removed and moved: the state is kept",
        "test_named_sources",
        "test_a_source_is_added",
        "test_a_source_is_removed_and_does_not_come_back",
        "test_two_sources_change_places",
        "test_what_would_read_again_or_elsewhere_is_refused",
        "test_columns_and_folders_change",
        "test_a_batch_that_is_planned_runs_with_its_sources",
    ),
    "upgrade": _streams(
        "an upgrade, accepted or rolled back",
        "test_upgrade",
        "test_a_new_version_takes_over",
        "test_a_version_that_fails_is_rolled_back_wherever_the_command_dies",
    ),
    "known-bugs": _streams(
        "wrong rows of Spark: refused on the versions that give them",
        "test_known_bugs",
        "test_spark_is_wrong_on_the_versions_of_an_entry_alone",
    ),
    "script": _extension(
        "a script, taken as it is",
        "scripts",
        "test_files_to_parquet",
        "test_several_queries",
        "test_what_cannot_be_mapped_is_named_before_anything_runs[not mapped]",
        "test_what_cannot_be_mapped_is_named_before_anything_runs[session]",
    ),
    "for-each-batch": _extension(
        "`for_each_batch`, from a plain checkpoint", "scripts", "test_each_batch_with_a_merge"
    ),
    "sql": _commands("a file of SQL", "test_file_of_sql"),
    "sql-pipelines": _commands(
        "a file of SQL with `CREATE FLOW`, `FROM STREAM`", "test_sql_of_pipelines"
    ),
    "sql-watermark": _commands("a file of SQL with `WATERMARK`", "test_sql_with_a_watermark"),
    "buckets": _extension(
        "files in a bucket are Spark's own",
        "bucket_files",
        "test_parquet_is_what_spark_writes",
        "test_folders_are_those_that_spark_makes",
        "test_lines_are_those_that_spark_writes",
        "test_a_stream_and_a_batch_job_write_to_a_bucket[s3]",
    ),
    "samples": _streams(
        "`run_in_memory`",
        "test_samples",
        "test_a_job_gives_in_memory_what_plain_python_gives[outer_join-batch]",
        "test_a_job_gives_in_memory_what_plain_python_gives[window_over_window-streaming]",
        "test_batches_are_read_one_by_one_so_that_a_row_can_be_late",
        "test_late_rows_can_fail_the_run_or_be_kept",
        "test_samples_are_rows_and_tables_of_any_kind",
        "test_a_rolling_result_is_the_last_of_each_key",
        "test_a_job_that_fails_says_what_a_run_would_say",
    ),
    "preview": _streams(
        "`preview`",
        "test_samples",
        "test_a_preview_takes_rows_of_the_sources_themselves",
        "test_a_source_that_is_no_table_is_refused_with_the_way_out",
    ),
    "state": _commands("state query, diff", "test_query_and_diff_of_state"),
    "partitions": _commands("another number of state partitions", "test_other_partitions"),
    "timers": _commands("`transformWithStateInPandas`", "test_transform_with_state"),
    "python-sources": _commands("sources written in Python", "test_sources_in_python"),
}
YES: Final = "yes"
REFUSED: Final = "refused"
FAILED: Final = "**no**"
MARKS: Final = ("<!-- table of make test-versions -->", "<!-- end of the table -->")
PIP: Final = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
_OURS: Final = ("SPARK_STREAM_CACHE",)

Outcomes = dict[str, str]


class VersionsError(Exception):
    """One line that says what is missing."""


def main(argv: Sequence[str] | None = None) -> int:
    """Install what is missing, run the tests on each version, print the table."""
    arguments = _parser().parse_args(argv)
    wanted = arguments.versions or list(VERSIONS)
    results: dict[str, Outcomes] = {}
    try:
        for version in wanted:
            results[version] = run_on(version, arguments.rows, arguments.pytest)
    except VersionsError as error:
        print(f"versions: {error}", file=sys.stderr)
        return 1
    print("\n".join(table(results)))
    if arguments.write:
        before = on_page()
        kept = {each: before.get(each, {}) | results.get(each, {}) for each in VERSIONS}
        write(table(kept))
    return 1 if any(FAILED in found.values() or not found for found in results.values()) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="What holds on which version of Spark.")
    parser.add_argument("versions", nargs="*", metavar="VERSION", help=f"default: {VERSIONS}")
    text = "the rows to run"
    parser.add_argument(
        "--rows", nargs="+", choices=list(ROWS), default=list(ROWS), metavar="ROW", help=text
    )
    text = f"put the cells that were run into the table of {PAGE.name}"
    parser.add_argument("--write", action="store_true", help=text)
    text = "an option of pytest's, such as --pytest=--maxfail=1; may be repeated"
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
    wanted = (f"pyspark=={version}", *BESIDE.get(version, ()))
    command = [*PIP, "install", "--quiet", "--no-warn-conflicts", "--target", str(unfinished)]
    done = subprocess.run([*command, *wanted], check=False)
    if done.returncode != 0:
        raise VersionsError(f"PySpark {version} could not be installed into {unfinished}")
    unfinished.replace(folder)
    return folder


def run_on(version: str, rows: Iterable[str], options: Sequence[str]) -> Outcomes:
    """Run the tests of some rows on one version; return what they have found."""
    folder = install(version)
    report = FOLDER / f"{version}.xml"
    report.unlink(missing_ok=True)
    chosen = {row: ROWS[row] for row in rows}
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        # What an older PySpark imports may be deprecated in a newer Python.
        *("-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning"),
        # It leaves sockets open until they are garbage.
        *("-W", "ignore::pytest.PytestUnraisableExceptionWarning"),
        *("--junitxml", str(report), "-o", "junit_family=xunit1"),
        *options,
        *(f"{row.module}::{test}" for row in chosen.values() for test in row.tests),
    ]
    began = time.monotonic()
    say(f"Spark {version}")
    subprocess.run(command, cwd=ROOT, env=environment_of(folder), check=False)
    found = outcomes_in(report, chosen)
    counts = ", ".join(
        f"{list(found.values()).count(each)} {each}" for each in sorted({*found.values()})
    )
    say(f"Spark {version}: {counts or 'nothing has run'}; {time.monotonic() - began:.0f} s")
    return found


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


def on_page() -> dict[str, Outcomes]:
    """Return the table of the page, by version."""
    text = PAGE.read_text(encoding="utf-8").partition(MARKS[0])[2].partition(MARKS[1])[0]
    header, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()
    )
    return {
        version: {row[-1].strip("`"): row[column] for row in rows if row[column]}
        for column, version in enumerate(header[1:-1], start=1)
    }


def outcomes_in(report: Path, rows: Mapping[str, Row]) -> Outcomes:
    """Return what each row has found, of all its cases the worst; nothing if none has run."""
    if not report.exists():
        return {}
    cases: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - pytest has just written it
        module = str(case.get("classname")).rpartition(".")[2]
        noted = [str(each.get("value")) for each in case.iter("property")]
        has_passed = all(case.find(each) is None for each in ("failure", "error", "skipped"))
        cases[f"{module}::{case.get('name')}"] = (noted or [YES])[-1] if has_passed else FAILED
    return {name: _worst(row, cases) for name, row in rows.items()}


def _worst(row: Row, cases: Mapping[str, str]) -> str:
    """Return the worst outcome of a row's tests; one that has not run has failed."""
    found = []
    for test in row.tests:
        name = f"{Path(row.module).stem}::{test}"
        own = [outcome for case, outcome in cases.items() if name in {case, case.partition("[")[0]}]
        found += own or [FAILED]
    return max(found, key=(YES, REFUSED, FAILED).index)


def table(results: Mapping[str, Outcomes]) -> list[str]:
    """Return the table as lines of Markdown; what was not run is left empty."""
    rows = [
        f"| {row.label} | {' | '.join(each.get(name, '') for each in results.values())} "
        f"| `{name}` |"
        for name, row in ROWS.items()
    ]
    return [
        f"| | {' | '.join(results)} | `--rows` |",
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
