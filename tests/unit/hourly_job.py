"""A job with a run for each hour of event time, whose runs are rewound and replayed by hand."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.jobdir.epoch_documents import BatchCounts
from airflow_provider.runtime.jobdir.event_times import EventTimes
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.query_records import TopologyRecord
from airflow_provider.runtime.savepoints.restores import replayed_by
from airflow_provider.runtime.savepoints.rewind import Rewind, begin_rewindable
from airflow_provider.runtime.testing.job_directories import a_final, a_run
from tests.unit.support import EpochBench, FakeFrame, FakeSink

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider.runtime.observe.events import EventSource, EventStep, State

HOUR = 3_600_000


def hours(first: int, last: int | None = None) -> EventTimes:
    """Return the event times of the hours from one up to another, inclusive."""
    return EventTimes(first * HOUR, ((first if last is None else last) + 1) * HOUR - 1)


def ended(hour: int) -> str:
    """Return the end of an hour, as events have it."""
    return f"1970-01-{1 + (hour + 1) // 24:02}T{(hour + 1) % 24:02}:00:00.000Z"


class HourlyJob:
    """A stream of which the run ``r<n>`` has written hour n, in batch n.

    Args:
        root: its job directory.
    """

    def __init__(self, root: Path) -> None:
        self.sink = FakeSink()
        self.bench = EpochBench(root, self.sink).begun()
        self.directory = JobDirectory(self.bench.storage)

    def run(
        self,
        hour: int,
        run_id: str = "",
        *,
        times: EventTimes | None = None,
        rows: int = 1,
        is_final: bool = True,
        **counted: Any,
    ) -> None:
        """Let a run write an hour, and end; without *is_final* its driver is at work."""
        bench, name = self.bench, run_id or f"r{hour}"
        committer = bench.recovered(name)
        last = bench.spark.logs.position().last_commit
        ends: Any = [f"1970-01-01T{hour % 24:02}:00:00Z", f"1970-01-01T{hour % 24:02}:59:59.999Z"]
        record = a_run(
            name,
            starting={"q": last},
            replayable=True,
            token=committer._token,
            interval=counted.pop("interval", ends),
        )
        record = self.directory.run(name).put_record(record)
        begin_rewindable(self.directory, record, bench.clock)
        if bench.spark.logs.query_id() is None:
            bench.spark.begin("7d0f2a34-5f5e-4c0e-9f0a-000000000000")
        bench.spark.plan(last + 1, watermark_ms=hour * HOUR)
        counted = {"event_times": times or hours(hour), **counted}
        counts = BatchCounts(rows, **counted)
        frame = FakeFrame(*(f"{name} {number}" for number in range(rows)))
        committer.pre_commit(frame, last + 1, lambda: counts)
        bench.spark.commit(last + 1, next_watermark_ms=(hour + 1) * HOUR)
        committer.commit_ready()
        bench.close()
        if is_final:
            self.finish(name)

    def reads_corrections(self) -> None:
        """Let the query of today's id read a source with a folder of corrected records."""
        query_id = str(self.bench.spark.logs.query_id())
        sources: list[str | None] = ["events", "events.also"]
        record = TopologyRecord(query_id=query_id, sources=sources, operators=[], versions=[])
        record.put(self.bench.storage, f"queries/q/topologies/{query_id}.json")

    def finish(self, run_id: str) -> None:
        self.directory.run(run_id).put_final(a_final(run_id, outcome="SUSPENDED"))

    def rewind(self, hour: int, *, by: str = "rewind", token: int = 99) -> None:
        self.rewind_run(f"r{hour}", by=by, token=token)

    def rewind_run(self, run_id: str, *, by: str = "rewind", token: int = 99) -> None:
        query = SimpleNamespace(name="q", sinks=[self.sink], native=None)
        fence = OpenFence(token)
        Rewind(self.directory, run_id, [query], fence, self.bench.clock, by=by).rewind()

    def undo_for_replay(self, hour: int) -> str:
        """Do what a replay does first; return the run that is to write the hour again."""
        replay = f"r{hour}.r2"
        self.rewind(hour, by=replayed_by(replay, f"r{hour}"))
        return replay


class Watcher:
    """A watcher of a job, and what it has reported; between two looks only JSON is left.

    Args:
        job: the job.
        source: what it reports.
    """

    def __init__(self, job: HourlyJob, source: EventSource[Any]) -> None:
        self._job, self._source = job, source
        self.state: State = source.begin(source.read(job.directory, None))

    def new(self, at_most: int = 1000) -> list[EventStep]:
        seen = self._source.read(self._job.directory, self.state)
        steps = list(self._source.steps(self.state, seen))[:at_most]
        if steps:
            self.state = json.loads(json.dumps(steps[-1].state))
        return steps

    def ids(self, at_most: int = 1000) -> list[str]:
        return [step.id for step in self.new(at_most)]
