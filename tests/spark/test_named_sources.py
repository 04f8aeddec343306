"""Sources added, removed, moved and changed in a job with state: kept and exact, or refused.

Since Spark 4.2 the offset log has the names of sources; with an older Spark each keeps its place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from streams import SUSPEND, Location, failing_at, read_with_duckdb, savepoint_of

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import ConfigError, SparkStreamError
from airflow_provider.runtime.spark.versions import names_sources
from airflow_provider.runtime.storage.open import open_storage

pytestmark = pytest.mark.spark

JOBS = Path(__file__).with_name("named_jobs.py")
Sources = Mapping[str, Mapping[str, str]]


class Job:
    """The job of ``named_jobs.py``, of which each run reads what there is and suspends."""

    def __init__(
        self,
        spark: Any,
        location: Location,
        note: Callable[[str, object], None] = lambda *_: None,
    ) -> None:
        self.spark, self.location, self._note = spark, location, note
        self._runs = 0

    def put(self, folder: str, *rows: tuple[str, int]) -> None:
        there = self.location.root / folder
        there.mkdir(exist_ok=True)
        number = len(list(there.iterdir()))
        (there / f"{number}.csv").write_text("".join(f"{k},{v}\n" for k, v in rows))

    def of(self, *names: str, **others: Mapping[str, str]) -> dict[str, dict[str, str]]:
        """Return sources, each of its own folder unless the test says otherwise."""
        plain: dict[str, Mapping[str, str]] = {name: {} for name in names}
        root = self.location.root
        return {
            name: {**how, "path": str(root / how.get("path", name))}
            for name, how in {**plain, **others}.items()
        }

    def ask(self, sources: Sources, job: str = "pairs", **asked: Any) -> Any:
        listed = self.location.root / "sources.json"
        listed.write_text(json.dumps(sources))
        params = {"sources": str(listed), **asked.pop("params", {})}
        entry = f"{JOBS}:{job}"
        return self.location.ask(job, entry=entry, params=params, **{**SUSPEND, **asked})

    def run(self, sources: Sources, job: str = "pairs", **asked: Any) -> Any:
        self._runs += 1
        asked.setdefault("run_id", f"r{self._runs}")
        return run_job(self.ask(sources, job, **asked), spark=self.spark)

    def die(self, point: str, sources: Sources, **asked: Any) -> None:
        """Run the job, whose driver fails at a failpoint and is not restarted."""
        with failing_at(point), contextlib.suppress(OSError, SparkStreamError):
            self.run(sources, restart="none", **asked)
            raise AssertionError(f"{point} was not reached")

    def refuse(self, said: str, sources: Sources, **asked: Any) -> None:
        """Run the job, which is refused before a byte is written."""
        before = everything_in(self.location.job_dir), everything_in(self.location.output)
        with pytest.raises(ConfigError, match=said):
            self.run(sources, **asked)
        after = everything_in(self.location.job_dir), everything_in(self.location.output)
        assert before == after

    def refuse_or(self, then: Callable[[], None], said: str, sources: Sources) -> None:
        """Run the job and then *then*; a Spark whose log has no names refuses it."""
        if names_sources(self.spark):
            self.run(sources)
            then()
        else:
            self.refuse(rf"{said}.*Spark .* knows sources by their positions, 4\.2", sources)
            self._note("outcome", "refused")

    @property
    def written(self) -> list[tuple[str, int]]:
        return sorted(
            (str(k), int(v)) for k, v in read_with_duckdb(self.location.output / "part-*")
        )

    @property
    def logs(self) -> CheckpointLogs:
        return CheckpointLogs(open_storage(str(self.location.checkpoint())))


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def job(spark: Any, location: Location, record_property: Callable[[str, object], None]) -> Job:
    """Return a job that has written what ``a`` and ``b`` have, and has more of ``a`` to read."""
    made = Job(spark, location, record_property)
    made.put("a", ("a", 1), ("both", 1))
    made.put("b", ("b", 1), ("both", 1))
    made.run(made.of("a", "b"))
    assert [("a", 1), ("b", 1), ("both", 1)] == made.written
    made.put("a", ("b", 1), ("a", 2))
    return made


TWO = [("a", 1), ("a", 2), ("b", 1), ("both", 1)]


def test_a_source_is_added(job: Job) -> None:
    """It is read from its beginning, into the state that is there; and again only what is new."""
    job.put("c", ("a", 1), ("c", 1))

    def then() -> None:
        assert [*TWO, ("c", 1)] == job.written
        job.put("c", ("both", 1), ("c", 2))
        job.run(job.of("c", "a", "b"))
        assert [*TWO, ("c", 1), ("c", 2)] == job.written

    said = r"expected 2 sources \(a, b\), found 3 sources \(c, a, b\)"
    job.refuse_or(then, said, job.of("c", "a", "b"))


def test_a_source_is_removed_and_does_not_come_back(job: Job) -> None:
    """Its rows stay in the state; under its name its position would be unknown."""

    def then() -> None:
        assert TWO == job.written
        job.put("a", ("a", 3))
        job.refuse("source 'b' was removed before", job.of("a", "b"))
        job.run(job.of("a"))
        assert sorted([*TWO, ("a", 3)]) == job.written

    job.refuse_or(then, r"expected 2 sources \(a, b\), found 1 source \(a\)", job.of("a"))


def test_two_sources_change_places(job: Job) -> None:
    """Each continues where it was."""
    job.put("b", ("b", 2))

    def then() -> None:
        assert sorted([*TWO, ("b", 2)]) == job.written

    job.refuse_or(then, r"expected 2 sources \(a, b\), found 2.*\(b, a\)", job.of("b", "a"))


def test_what_would_read_again_or_elsewhere_is_refused(job: Job) -> None:
    """A source under another name, and one that is of another kind."""
    renamed = job.of("a", b2={"path": "b"})
    said = r"found 2 sources \(a, b2\) \("
    why = "under another name a source is read again" if names_sources(job.spark) else "Spark"
    job.refuse(f"{said}{why}", renamed)
    by_the_clock = job.of("a", b={"kind": "rate"})
    job.refuse("expected source 'b' to be files, found rate", by_the_clock)

    job.run(job.of("a", "b"))
    assert TWO == job.written


def test_columns_and_folders_change(job: Job) -> None:
    """A column more in a source; a folder, when no batch has to be planned again with its files."""
    job.put("elsewhere", ("b", 1), ("b", 3))
    wider = {"a": {"more": ", w int"}, "b": {"more": ", w int"}}

    job.refuse("does not fit its state", job.of(**wider), params={"keys": "k,v,w"})
    moved = job.of(a=wider["a"], b={"path": "elsewhere"})
    job.refuse(r"source 'b' reads .*elsewhere now, and its last batch has read .*/b/0\.csv", moved)
    job.run(job.of(**wider))
    assert TWO == job.written
    job.run(moved)

    assert sorted([*TWO, ("b", 3)]) == job.written


def test_a_batch_that_is_planned_runs_with_its_sources(job: Job) -> None:
    """A run that has died in a batch: until it has committed, no source comes or goes."""
    job.put("c", ("c", 1))
    job.die("sink.staged", job.of("a", "b"))

    if names_sources(job.spark):
        why = "batch 1 is planned and not committed"
        for sources in (job.of("a", "b", "c"), job.of("a")):
            job.refuse(why, sources, run_id="r2")
        savepoint = savepoint_of(job.location, aligned_timeout_s=0)
        begun = job.ask(job.of("a", "b", "c"), run_id="n1", from_savepoint=savepoint.url)
        elsewhere = dataclasses.replace(begun, job_dir=str(job.location.root / "elsewhere"))
        with pytest.raises(ConfigError, match=why):
            run_job(elsewhere, spark=job.spark)
    job.run(job.of("b", "a") if names_sources(job.spark) else job.of("a", "b"), run_id="r2")

    assert TWO == job.written


def test_after_its_last_row_a_query_keeps_its_sources(job: Job) -> None:
    """A drain that was promised, and perhaps not done, is of the sources that it was promised for."""
    job.put("c", ("c", 1))
    job.die("drain.intended", job.of("a", "b"), at_end="drain", until="end")

    job.refuse(
        "has finished|has changed", job.of("a", "b", "c"), run_id="r2", at_end="drain", until="end"
    )
    job.run(job.of("a", "b"), at_end="drain", until="end", run_id="r2")

    assert TWO == job.written


def test_a_savepoint_and_a_rewind_take_other_sources(job: Job, tmp_path: Path) -> None:
    """What is set back continues with a source more, as what was never set back does."""
    if not names_sources(job.spark):
        pytest.skip("this Spark refuses it, as without a savepoint")
    savepoint = savepoint_of(job.location)
    job.put("c", ("a", 1), ("c", 1))
    job.run(job.of("c", "a", "b"))
    assert [*TWO, ("c", 1)] == job.written

    other = Location(tmp_path / "other")

    def begin(sources: Sources) -> None:
        begun = job.ask(sources, run_id="n1", from_savepoint=savepoint.url)
        params = {**begun.params, "output": str(other.output)}
        run_job(
            dataclasses.replace(begun, job_dir=str(other.job_dir), params=params), spark=job.spark
        )

    with pytest.raises(ConfigError, match="under another name"):
        begin(job.of("c", "b"))
    begin(job.of("c", "b", "a"))

    restored = sorted((str(k), int(v)) for k, v in read_with_duckdb(other.output / "part-*"))
    assert [("a", 2), ("c", 1)] == restored  # what the savepoint's state had written is not


def test_a_log_of_positions_stays_one(spark: Any, location: Location) -> None:
    """A source in two places of the plan has no name that is its own; later it could have."""
    job = Job(spark, location)
    job.put("a", ("a", 1))
    job.run(job.of("a"), "both_places")
    assert job.logs.offsets(0).names is None

    job.refuse(r"found 1 source \(a\) \((its offset log|Spark)", job.of("a"))
    job.put("a", ("a", 2))
    job.run(job.of("a"), "both_places")

    assert [("a", 1), ("a", 2)] == job.written


def test_the_ends_of_a_run_are_found_by_name(job: Job) -> None:
    """A file that arrives while a batch fails is for the next run, also when sources are moved."""
    job.die("sink.staged", job.of("a", "b"))
    job.put("b", ("b", 9))
    moved = job.of("b", "a") if names_sources(job.spark) else job.of("a", "b")

    job.run(moved, run_id="r2")
    assert TWO == job.written
    job.run(moved, run_id="r3")

    assert sorted([*TWO, ("b", 9)]) == job.written


def test_batch_gives_the_rows_of_the_sources_by_name_or_position(
    spark: Any, location: Location
) -> None:
    """It has no offset log and no state: one run reads all of what it has."""
    job = Job(spark, location)
    job.put("a", ("a", 1))
    job.put("b", ("a", 1), ("b", 1))

    job.run(job.of("b", "a"), mode="batch", until=None, at_end=None)

    assert [("a", 1), ("b", 1)] == job.written
