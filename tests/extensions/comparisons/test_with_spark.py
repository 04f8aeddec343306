"""Second answers: runs that are computed again and compared, and versions over the same input."""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from streams import START, Location, write_events

from airflow_provider.extensions.comparisons.comparing import (
    How,
    NewVersion,
    compare_version,
    verify_run,
)
from airflow_provider.extensions.comparisons.report import Report
from airflow_provider.runtime.errors import ConfigError, RunCancelledError, RunFailedError
from airflow_provider.runtime.jobdir.run_records import BATCH, STREAMING
from tests.extensions.comparisons import compared_jobs

pytestmark = pytest.mark.spark

JOBS = compared_jobs.__file__
# The second file is the larger one, which a batch job reads first. No event is late.
EVENTS = (
    [(0, "a", 1), (1, "b", 2), (1, "b", 3), (12, "a", 5)],
    [(12, "a", 7), (13, "a", 11), (14, "b", 13), (24, "a", 17), (25, "b", 19), (26, "b", 23)],
)


@dataclasses.dataclass(frozen=True)
class Bench:
    """A job, and a folder for scratch folders, which is empty after each comparison."""

    spark: Any
    location: Location

    @property
    def scratch(self) -> Path:
        return self.location.root / "scratch"

    def run(self, job: str, mode: str = "streaming", events: Any = EVENTS, **params: str) -> str:
        if not self.location.input.exists():
            write_events(self.location.input, *events)
        entry = f"{JOBS}:{job}"
        run = self.location.run(self.spark, "", entry=entry, mode=mode, params=params)
        return run.run_id

    def how(self, **more: Any) -> How:
        self.scratch.mkdir(exist_ok=True)
        given = {"spark": self.spark, "stop": threading.Event(), "scratch": str(self.scratch)}
        return How(**{**given, **more})

    def verify(self, run_id: str | None = None, *, key: Any = None, **given: Any) -> Report:
        before = tree_of(self.location.root)
        how = self.how(keys={"": key} if key else {})
        report = verify_run(str(self.location.job_dir), run_id, how, **given)
        assert before == tree_of(self.location.root)  # nothing is written, and nothing left
        return report

    def compare(self, job: str, key: Any = None, **params: str) -> Report:
        before = tree_of(self.location.root)
        new = NewVersion(f"{JOBS}:{job}", params)
        how = self.how(keys={"": key} if key else {})
        report = compare_version(str(self.location.job_dir), None, new, how)
        assert before == tree_of(self.location.root)
        return report


def tree_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Return what is in a folder, as far as somebody could change it."""
    return {
        str(file.relative_to(folder)): (file.stat().st_size, file.stat().st_mtime_ns)
        for file in folder.rglob("*")
        if file.is_file()
    }


@pytest.fixture
def bench(spark, location) -> Bench:
    return Bench(spark, location)


def said(report: Report) -> str:
    return "\n".join(report.lines())


# --- equal ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "params"),
    [
        ("windows", {}),
        ("joined", {}),
        ("rows", {"format": "csv", "by": "k"}),
        ("maps", {}),
        ("maps", {"format": "json"}),
    ],
    ids=["windows", "joined", "csv in folders", "maps", "maps as json"],
)
@pytest.mark.parametrize("mode", [STREAMING, BATCH])
def test_a_run_is_equal_to_its_second_computation_in_the_other_mode(bench, job, params, mode):
    """
    Whatever the format of the files, and although more input has come since the run.
    """
    bench.run(job, mode.lower(), **params)
    write_events(bench.location.input, [(3, "a", 100), (40, "c", 100)], first=7)

    report = bench.verify()

    other = BATCH if mode == STREAMING else STREAMING
    assert ("EQUAL", f"a second computation in {other}") == (report.verdict, report.second)
    (query,) = report.queries
    assert query.outputs[0].difference.first_rows > 0
    assert 0 == report.exit_code


def test_names_of_files_that_are_patterns_or_not_ascii_are_read_once(bench):
    """
    A list of files has their addresses, which are no patterns.
    """
    write_events(bench.location.input, *EVENTS)
    for number, name in enumerate(("a b ü%20.csv", "x[1]*.csv")):
        (bench.location.input / f"00{number}.csv").rename(bench.location.input / name)
    bench.run("windows", "batch")
    write_events(bench.location.input, [(3, "a", 100)], first=7)

    assert "EQUAL" == bench.verify().verdict


def test_queries_that_no_other_mode_can_run_are_computed_again_in_their_own(bench):
    """
    A chain is refused in BATCH with the fix, and is read from the scratch output then.
    """
    bench.run("chain")

    with pytest.raises(ConfigError, match="cannot be computed in BATCH: .*--mode streaming"):
        bench.verify()
    report = bench.verify(mode="streaming")

    assert ["EQUAL", "EQUAL"] == [query.verdict for query in report.queries]


def test_functions_and_callbacks_of_the_job_are_not_called(bench):
    """
    A query for a function has its numbers compared, and the report says why no rows are.
    """
    trace = bench.location.root / "trace"
    events = [*EVENTS, [(27, "a", 100), (28, "a", 101)]]
    bench.run("several", events=events, trace=str(trace))
    before = trace.read_text()

    report = bench.verify()

    assert before == trace.read_text()
    assert "EQUAL" == report.verdict
    assert {"out": "EQUAL", "told": "NOT COMPARED"} == {q.name: q.verdict for q in report.queries}
    assert (
        "rows not compared (the rows of for_each_batch:notes cannot be read back); unknown and 12 rows"
        in said(report)
    )
    assert "note: callbacks of the job were not called, since they may write: on_finish" in said(
        report
    )
    assert (2, 2) == report.queries[0].account["rows that broke a rule"]


def test_a_later_run_without_state_is_computed_from_its_own_files(bench):
    """
    One that keeps state is refused: a second computation would begin without it.
    """
    bench.location.run(
        bench.spark, "", entry=f"{JOBS}:rows", until="available", run_id="one", **events_in(bench)
    )
    write_events(bench.location.input, [(30, "a", 1), (31, "b", 2)], first=7)
    bench.location.run(bench.spark, "", entry=f"{JOBS}:rows", until="available", run_id="two")

    reports = {run: bench.verify(run) for run in ("one", "two")}

    rows = {run: r.queries[0].outputs[0].difference.first_rows for run, r in reports.items()}
    assert {"one": 10, "two": 2} == rows
    assert {"EQUAL"} == {report.verdict for report in reports.values()}


def events_in(bench: Bench) -> dict[str, Any]:
    write_events(bench.location.input, *EVENTS)
    return {}


def test_a_run_that_continues_with_state_is_refused(bench):
    """
    And one that keeps open windows is, where the other mode would write them.
    """
    write_events(bench.location.input, *EVENTS)
    asked = {"entry": f"{JOBS}:windows", "until": "available"}
    bench.location.run(bench.spark, "", run_id="one", **asked)
    write_events(bench.location.input, [(50, "a", 1)], first=7)
    bench.location.run(bench.spark, "", run_id="two", **asked)

    with pytest.raises(ConfigError, match="ended SUSPENDED: query 'out' keeps rows in its state"):
        bench.verify("one")
    with pytest.raises(ConfigError, match="continues from an earlier run of the job, and keeps"):
        bench.verify("two", mode="streaming")
    assert "EQUAL" == bench.verify("one", mode="streaming").verdict


# --- planted differences --------------------------------------------------------------------------


def edit_output(bench: Bench) -> None:
    """Replace a value in a published file, as a person would."""
    (file, *_) = sorted(bench.location.output.glob("*.csv"))
    file.write_text(file.read_text().replace("1.0", "1.5", 1))


def lose_output(bench: Bench) -> None:
    sorted(bench.location.output.glob("*.csv"))[-1].unlink()


def double_output(bench: Bench) -> None:
    (file, *_) = sorted(bench.location.output.glob("*.csv"))
    shutil.copy(file, file.with_name(f"copy of {file.name}"))


def change_input(bench: Bench) -> None:
    file = bench.location.input / "000.csv"
    file.write_text(file.read_text().replace(",1\n", ",6\n", 1))
    os.utime(file, (START + 60, START + 60))


LATE = ([(0, "a", 1), (20, "a", 2)], [(21, "a", 3)], [(1, "a", 4)])
DIGITS = (  # 1 is lost in 10^16, unless that is gone before
    [(0, "a", 1)],
    [(1, "a", 10**16), (1, "b", 1)],
    [(2, "a", -(10**16)), (2, "b", 2), (3, "b", 3)],
)
PLANTED = {
    "a random number": ("rows", {"n": "rand()"}, EVENTS, None, "rand(): not deterministic"),
    "a time of the clock": (
        "rows",
        {"n": "current_timestamp()"},
        EVENTS,
        None,
        "current_timestamp(): the time of the computation",
    ),
    "an id": ("rows", {"n": "uuid()"}, EVENTS, None, "uuid(): not deterministic"),
    "a shuffled array": (
        "rows",
        {"n": "shuffle(array(1D, 2D, v))[0]"},
        EVENTS,
        None,
        "shuffle(): not deterministic",
    ),
    "the first of a group": (
        "windows",
        {"n": "first(v)"},
        EVENTS,
        None,
        "first(): the result may depend on the order of the rows",
    ),
    "a sum of floating-point numbers": (
        "windows",
        {"n": "sum(v)"},
        DIGITS,
        None,
        "the last digits depend on the order of the rows",
    ),
    "late rows": ("windows", {}, LATE, None, "late 1 | 0"),
    "a limit": ("limited", {}, EVENTS, None, "limit: each computation takes other rows"),
    "one of several duplicates": (
        "distinct",
        {},
        EVENTS,
        None,
        "dropDuplicates: neither mode defines which of the duplicates stays",
    ),
    "an edited output": ("rows", {"format": "csv"}, EVENTS, edit_output, '"v":1.5'),
    "a lost file": ("rows", {"format": "csv"}, EVENTS, lose_output, "1 of its files are missing"),
    "a doubled file": (
        "rows",
        {"format": "csv"},
        EVENTS,
        double_output,
        "1 files beside its own that no run has published",
    ),
    "a changed input": ("rows", {}, EVENTS, change_input, "1 input files have changed since"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_difference_is_named(bench, planted):
    """
    With what tells where it comes from: the plan, the late rows, the files.
    """
    job, params, events, plant, named = PLANTED[planted]
    bench.run(job, events=events, **params)
    if plant is not None:
        plant(bench)

    report = bench.verify()

    assert ("DIFFERENT", 6) == (report.verdict, report.exit_code), said(report)
    assert named in said(report)


def test_without_a_planted_difference_nothing_is_named(bench):
    """
    The same events, in the same job.
    """
    bench.run("windows", n="count(*)")

    report = bench.verify()

    assert "EQUAL" == report.verdict
    head, line, numbers = report.lines()
    assert head.startswith("EQUAL: run ")
    assert f"  out -> files:{bench.location.output}: 6 rows, the same in both" == line
    assert numbers.startswith("    rows read 10 | 10; late 0 | 0; batches ")


def test_the_only_stateful_operator_is_blamed(bench):
    """
    By the job's name for it.
    """
    bench.run("windows", events=LATE)

    report = bench.verify(key=["start", "k"])

    text = said(report)
    assert "its only stateful operator: by key" in text
    assert "rows with the same key differ in n (1)" in text
    assert 'only published: {"start":"2026-01-01T00:00:00.000Z","k":"a","n":1}' in text
    assert 'only computed again: {"start":"2026-01-01T00:00:00.000Z","k":"a","n":2}' in text


# --- versions -------------------------------------------------------------------------------------


def test_the_same_version_is_equal_to_its_run(bench):
    """
    In the mode of the run, with the run's parameters, and with one that changes nothing.
    """
    bench.run("windows")
    write_events(bench.location.input, [(3, "a", 100)], first=7)

    report = bench.compare("windows", where="v > 0")

    assert "EQUAL" == report.verdict, said(report)
    assert f"{JOBS}:windows in STREAMING" == report.second
    assert {"late", "batches", "longest batch", "most state rows"} < {*report.queries[0].counts}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"where": "v > 1"}, "6 rows in the run and 6 in the new version; 1 only in the run"),
        ({"where": "v > 1"}, "rows with the same key differ in n (1)"),
        ({"size": "20 seconds"}, "6 rows in the run and 4 in the new version"),
        ({"n": "sum(v)"}, "column n is bigint in the first and double in the second"),
        ({"n": "max(v)"}, "its only stateful operator: by key"),
    ],
)
def test_a_changed_version_is_named(bench, changed, named):
    """
    Rows of one alone, columns that differ by key, and columns of another type.
    """
    bench.run("windows", events=([*EVENTS[0], (2, "a", 29)], EVENTS[1]))

    report = bench.compare("windows", key=["start", "k"], **changed)

    assert "DIFFERENT" == report.verdict
    assert named in said(report)


def test_added_columns_queries_and_outputs_are_named(bench):
    """
    The columns that both have are compared.
    """
    bench.run("rows", n="v")

    report = bench.compare("totals")

    out, more = report.queries
    assert ("EQUAL", "DIFFERENT") == (out.verdict, more.verdict)
    text = said(report)
    assert "only the first has the columns n; not compared" in text
    assert "only the second has the columns twice; not compared" in text
    assert f"  more: only {JOBS}:totals has this query" in text


def test_a_version_that_fails_leaves_nothing(bench):
    """
    Its error is that of a run.
    """
    bench.run("rows")
    before = tree_of(bench.location.root)

    with pytest.raises(RunFailedError, match="DIVIDE_BY_ZERO|Division by zero"):
        bench.compare("rows", n="v / (v - v)")
    assert before == tree_of(bench.location.root)


def test_a_run_whose_input_is_gone_is_refused(bench):
    """
    By the name of the file, before Spark computes anything.
    """
    bench.run("rows")
    (bench.location.input / "001.csv").unlink()

    with pytest.raises(ConfigError, match=r"1 of the files that it has read are gone \(.*001.csv"):
        bench.verify()


def test_a_comparison_that_is_stopped_is_cancelled(bench):
    """
    And its scratch folder is removed.
    """
    bench.run("rows")
    how = bench.how()
    how.stop.set()

    with pytest.raises(RunCancelledError):
        verify_run(str(bench.location.job_dir), None, how)
    assert [] == list(bench.scratch.iterdir())
