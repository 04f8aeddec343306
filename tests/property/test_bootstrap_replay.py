"""History, then the live rest = one job over everything, whatever the job and wherever it is parted."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from ends_truths import truth_of
from hypothesis import assume, given, seed, settings
from hypothesis import strategies as st
from job_inputs import FAMILIES, SETTINGS, inputs, plans
from streams import ROCKSDB, START, SUSPEND, Event, Location, Rows, read_with_pandas, write_events

from airflow_provider.runtime.bootstrap import bootstrap_job
from airflow_provider.runtime.control.bootstrap_request import BootstrapSpec
from airflow_provider.runtime.queries.spark_state import read_state_operators
from airflow_provider.runtime.savepoints.catalog import Savepoint

pytestmark = pytest.mark.spark

JOBS = Path(__file__).with_name("ends_jobs.py")
SOAK_EXAMPLES = int(os.environ.get("BOOTSTRAP_EXAMPLES", "25"))  # of each family
JOB_FAMILIES = {**FAMILIES, "timers": [("events", "timers"), ("events", "timeouts")]}
ARCHIVED_S = 30 * 86_400  # so much newer is history, that Spark would ignore what is live beside it
HISTORIES = {"parquet": "parquet", "csv": "csv", "json": "json", "the same folder": "csv"}


@dataclasses.dataclass(frozen=True)
class Parted:
    """A job, its input, and where that is parted into history and what the live job reads.

    Attributes:
        plan: of ``ends_jobs.composed``.
        files: of each source.
        until: how many files of each are history.
        history: what history is written as; of ``HISTORIES``.
        output: what becomes of its output: ``keep`` or ``discard``.
        per_batch: how many files a batch reads, of history (None for all) and of the rest.
    """

    plan: Mapping[str, Any]
    files: Mapping[str, Sequence[Sequence[Event]]]
    until: Mapping[str, int]
    history: str
    output: str
    per_batch: tuple[int | None, int]
    partitions: int
    rocksdb: bool

    def rows(self, *, past: bool) -> dict[str, list[Event]]:
        """Return all rows of each source, or those of its history."""
        return {
            name: [row for file in files[: self.until[name] if past else None] for row in file]
            for name, files in self.files.items()
        }


@st.composite
def parted_jobs(
    draw: st.DrawFn,
    pairs: Sequence[tuple[str, str]],
    *,
    output: str | None = None,
    history: str | None = None,
) -> Parted:
    """Make up a job of one of the pairs, and where it is parted.

    With *output* and *history* given it is a small one, which takes but a few seconds.
    """
    small = history is not None
    plan = draw(plans(pairs))
    count = draw(st.sampled_from((3, 4) if small else (4, 1, 2, 3, 6, 9)))
    names = ["events", "clicked"] if plan["head"].startswith("join") else ["events"]
    # Most often in the middle; now and then history is all that there is, or lacks a source.
    locations = (count // 2, count - 1, 1, count, 0)
    found = Parted(
        plan=plan,
        files={name: draw(inputs(count)) for name in names},
        until={
            name: draw(st.sampled_from(locations[:2] if small else locations)) for name in names
        },
        history=history or draw(st.sampled_from(tuple(HISTORIES))),
        output=output or draw(st.sampled_from(("discard", "keep"))),
        per_batch=(draw(st.sampled_from((None, 1, 2))), draw(st.sampled_from((2, 1, 3)))),
        partitions=draw(st.sampled_from((2, 1, 3))),
        rocksdb=plan["tail"] == "timers" or draw(st.booleans()),
    )
    assume(any(found.rows(past=True).values()))  # a bootstrap of nothing is refused
    return found


class Seam:
    """A job that is parted, on its way."""

    def __init__(self, spark: Any, root: Path, parted: Parted) -> None:
        self.spark = spark
        self.root = root
        self.parted = parted
        self.location = Location(root / "parted")
        self.is_same_folder = parted.history == "the same folder"
        self.conf = {
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": str(parted.partitions),
            **(ROCKSDB if parted.rocksdb else {}),
        }

    def params(self, *, past: bool) -> dict[str, str]:
        folder = "live" if self.is_same_folder or not past else "history"
        file_format = HISTORIES[self.parted.history] if past else "csv"
        per_batch = self.parted.per_batch[0 if past else 1]
        return {
            "plan": json.dumps(self.parted.plan),
            "format": file_format,
            "input": str(self.root / folder / "events"),
            "clicked": str(self.root / folder / "clicked"),
            **({"files_per_batch": str(per_batch)} if per_batch is not None else {}),
        }

    def write_history(self) -> None:
        for name, files in self.parted.files.items():
            past = files[: self.parted.until[name]]
            folder = Path(self.params(past=True)["input"]).with_name(name)
            if self.params(past=True)["format"] == "csv":
                write_events(folder, *past)
            else:
                write_table(folder, past, self.params(past=True)["format"])
            if not self.is_same_folder:
                for number, path in enumerate(sorted(folder.iterdir())):
                    os.utime(path, (START + ARCHIVED_S + number,) * 2)

    def write_rest(self) -> None:
        for name, files in self.parted.files.items():
            until = self.parted.until[name]
            write_events(self.root / "live" / name, *files[until:], first=until)

    def bootstrap(self) -> Savepoint:
        ask = BootstrapSpec(
            job_dir=str(self.location.job_dir),
            entry=f"{JOBS}:composed",
            params={**self.params(past=True), "output": str(self.location.output)},
            output=self.parted.output,
            kept=tuple(self.parted.files) if self.is_same_folder else (),
            conf=self.conf,
        )
        return bootstrap_job(ask, spark=self.spark)

    def run(self, location: Location, *, past: bool = False, **asked: Any) -> Rows:
        """Run the job over a part; return what readers see then."""
        entry, params = f"{JOBS}:composed", self.params(past=past)
        location.run(self.spark, "composed", entry=entry, params=params, conf=self.conf, **asked)
        return rows_in(location)


def write_table(folder: Path, files: Sequence[Sequence[Event]], file_format: str) -> None:
    """Write each sequence of events as one file."""
    folder.mkdir(parents=True)
    for number, events in enumerate(files):
        path = folder / f"{number:03d}.{file_format}"
        frame = pd.DataFrame(events, columns=["time", "k", "v"]).astype({"v": "int32"})
        times = pd.to_datetime(frame["time"] + START, unit="s", utc=True).astype(
            "datetime64[us, UTC]"
        )
        frame = frame.assign(time=times, k=frame["k"].astype("string"))
        if file_format == "json":
            frame.to_json(path, orient="records", lines=True, date_format="iso")
        else:
            frame.to_parquet(path)


def rows_in(location: Location) -> Rows:
    return read_with_pandas(location.output) if any(location.output.glob("*.parquet")) else []


def end_of(plan: Mapping[str, Any], row: tuple[Any, ...]) -> int | None:
    """Return when a row of the output is over; None where it does not say."""
    locations = {"windows": 1, "sessions": 1, "timers": None, "timeouts": None}
    tail = plan["tail"]
    if tail == "windows_over_windows":
        return int(row[0]) + 2 * int(plan["size"])
    if tail not in locations:
        return None
    return int(row[1]) + (10 if locations[tail] is None else 0)


def live_through(spark: Any, parted: Parted, *, replays: bool = False) -> None:
    """Bootstrap from history, run the rest: no row is lost, none twice, none before its time.

    Args:
        replays: run one job over everything as well; else that is what pandas says of it.
    """
    root = Path(tempfile.mkdtemp())
    try:
        seam = Seam(spark, root, parted)
        seam.write_history()
        made = seam.bootstrap()
        early = rows_in(seam.location)
        before = early
        if parted.output == "discard" or replays:
            before = seam.run(Location(root / "before"), past=True, **SUSPEND)
            assert (before if parted.output == "keep" else []) == early
        seam.write_rest()
        written = seam.run(seam.location, from_savepoint=made.url)
        left = read_state_operators(spark, str(seam.location.checkpoint()))
        assert [0] * len(left) == [operator.state_rows for operator in left]

        truth = truth_of(parted.plan, parted.rows(past=False))
        late = sorted((Counter(written) - Counter(early)).elements())
        assert truth == sorted([*before, *late])
        check_times(parted.plan, made, before, late)
        if replays:
            shutil.rmtree(root / "live")
            seam.parted = dataclasses.replace(parted, until=dict.fromkeys(parted.until, 0))
            seam.write_rest()
            assert truth == seam.run(Location(root / "whole"))
    finally:
        shutil.rmtree(root)


def check_times(plan: Mapping[str, Any], made: Savepoint, before: Rows, late: Rows) -> None:
    """Let history give what is over by its watermark, windows and timers, and the live job the rest."""
    text = made.record.queries["out"].watermark
    over = dt.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    assert all((end_of(plan, row) or 0) <= over for row in before)
    if not plan["head"].startswith("join"):  # a join holds back what it gives to a window
        assert all((end_of(plan, row) or over) >= over for row in late)


@pytest.mark.parametrize(
    ("head", "tail", "output", "history"),
    [
        pytest.param("events", "windows", "discard", "parquet", marks=pytest.mark.whole),
        pytest.param("events", "sessions", "keep", "the same folder", marks=pytest.mark.soak),
        pytest.param(
            *("distinct_within_watermark", "windows_over_windows", "discard", "json"),
            marks=pytest.mark.soak,
        ),
        pytest.param(
            *("join:leftOuter", "rows", "discard", "the same folder"), marks=pytest.mark.whole
        ),
        pytest.param("events", "timers", "discard", "csv", marks=pytest.mark.soak),
        pytest.param("events", "timeouts", "keep", "parquet", marks=pytest.mark.soak),
    ],
)
def test_a_parted_job_gives_what_a_whole_one_does(spark, head, tail, output, history):
    """
    History in another folder and format, or in the same one; with its output or without: together
    they give what pandas makes of everything, and timers fire on their side of the seam.
    """

    @settings(max_examples=1, derandomize=True, **SETTINGS)
    @given(parted_jobs([(head, tail)], output=output, history=history))
    def lives(parted: Parted) -> None:
        live_through(spark, parted)

    lives()


@pytest.mark.soak
@pytest.mark.parametrize("family", JOB_FAMILIES)
def test_parted_jobs_give_what_whole_ones_do(spark, family):
    """
    The same for many jobs, and of one job over everything; ``BOOTSTRAP_SEED`` repeats what was printed.
    """
    chosen = int(os.environ.get("BOOTSTRAP_SEED", random.randrange(1_000_000)))
    print(f"BOOTSTRAP_SEED={chosen}")

    @seed(chosen)
    @settings(max_examples=SOAK_EXAMPLES, **SETTINGS)
    @given(parted_jobs(JOB_FAMILIES[family]))
    def lives(parted: Parted) -> None:
        live_through(spark, parted, replays=True)

    lives()
