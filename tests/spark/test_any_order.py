"""With ``late="wait"`` a stream gives what a batch job gives, whatever the order of the files."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from row_checks import quarantined_rows
from streams import Location, read_with_pandas, write_events

from airflow_provider.runtime.errors import ConfigError

pytestmark = pytest.mark.spark

JOBS = Path(__file__).with_name("late_jobs.py")
QUERIES = [
    "tumbling",
    "sliding",
    "sessions",
    "distinct",
    "within",
    "inner",
    "left",
    "full",
    "groups",
    "chained",
]
MINUTE = 60


def shuffled(folder, seed, *, files=3, rows=40):
    """Write files of a minute each, of which Spark does not read the oldest one first."""
    order = random.Random(seed)
    minutes = [
        [
            (n * MINUTE + order.randrange(MINUTE), f"k{order.randrange(3)}", order.randrange(10))
            for _ in range(rows)
        ]
        for n in range(files)
    ]
    oldest, later = minutes[0], minutes[1:]
    order.shuffle(later)
    write_events(folder, *later, oldest)


def run(spark, location, mode, name, *, timers=False, kept=None, **asked):
    """Return the final checkpoint, and what each query has written; timers take some seconds."""
    output = location.root / name / "out"
    params = {
        "others": str(location.root / "others"),
        "output": str(output),
        "files_per_batch": "1",
        "timers": "yes" if timers else "no",
        **({"kept": kept} if kept else {}),
    }
    job = Location(location.root / name)
    final = job.run(
        spark,
        "every_operator",
        entry=f"{JOBS}:every_operator",
        mode=mode,
        params={**params, "input": str(location.input)},
        **asked,
    )
    queries = [*QUERIES, *(["timers"] if timers else [])]
    return final, {q: sorted(read_with_pandas(output / q), key=repr) for q in queries}


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "files"),
    [(1, 2), *(pytest.param(seed, 4, marks=pytest.mark.whole) for seed in range(2, 8))],
)
def test_a_stream_gives_what_a_batch_job_gives(spark, location, seed, files):
    """For each stateful operator; with a watermark that moves some of them would drop rows."""
    shuffled(location.input, seed, files=files)
    shuffled(location.root / "others", seed + 100, files=files)

    timers = files > 2  # in the whole product
    final, streamed = run(spark, location, "streaming", "stream", timers=timers, late="wait")
    _, batched = run(spark, location, "batch", "batch", timers=timers)

    assert batched == streamed
    assert all(streamed.values())
    assert ("FINISHED", 0, False) == (final.outcome, final.late_rows, final.late_minimum)


@pytest.mark.whole
def test_with_a_watermark_that_moves_each_operator_drops_rows(spark, location):
    """The shuffled files of the test above are late for all of them, so that it can fail."""
    shuffled(location.input, 1)
    shuffled(location.root / "others", 101)

    final, _ = run(spark, location, "streaming", "stream")

    for name, query in final.queries.items():  # of two windows the first one drops them
        assert sum(operator.late_rows for operator in query.operators) > 0, name


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "files"), [(1, 3), *(pytest.param(n, 4, marks=pytest.mark.whole) for n in (2, 3))]
)
def test_each_operator_keeps_the_rows_that_it_drops(spark, location, seed, files):
    """As many as it has dropped, each once, with what it missed and by how much."""
    shuffled(location.input, seed, files=files)
    shuffled(location.root / "others", seed + 100, files=files)
    kept = location.root / "kept"

    final, streamed = run(spark, location, "streaming", "stream", late="quarantine", kept=str(kept))

    for name in QUERIES:
        rows = quarantined_rows(kept / name)
        late = sum(operator.late_rows for operator in final.queries[name].operators)
        assert late == len(rows) > 0, name
        assert {"late"} == {row["kind"] for row in rows}
        found = [json.loads(row["row"]) for row in rows]
        names = [column for column in ("time", "k", "v") if column in found[0]]
        assert "k" in names
        assert counted(found, names) <= counted(read_rows(location), names)
        for row in rows:
            behind = (row["watermark"] - row["event_time"]).total_seconds()
            assert behind >= 0
            assert f"behind the watermark by {behind} s" == row["reason"]
    for name in ("tumbling", "sessions"):
        assert files * 40 == sum(row[3] for row in streamed[name]) + len(
            quarantined_rows(kept / name)
        )
    assert files * 40 == sum(row[1] for row in streamed["groups"]) + len(
        quarantined_rows(kept / "groups")
    )


@pytest.mark.long
def test_a_join_behind_another_operator_keeps_the_rows_of_its_other_side(spark, location):
    """What comes late from a source is kept by whichever operator drops it, and named after it."""
    shuffled(location.input, 1)
    shuffled(location.root / "others", 101)
    params = {"others": str(location.root / "others"), "kept": str(location.root / "kept")}

    final = location.run(
        spark,
        "out",
        entry=f"{JOBS}:behind_another",
        params={**params, "files_per_batch": "1"},
        late="quarantine",
    )

    operators = final.queries["out"].operators
    rows = quarantined_rows(location.root / "kept")
    assert all(operator.late_rows > 0 for operator in operators)
    assert {o.name: o.late_rows for o in operators} == Counter(row["location"] for row in rows)
    assert {("k", "time", "v"), ("a `time", "k", "v")} == {
        tuple(sorted(json.loads(row["row"]))) for row in rows
    }


def read_rows(location):
    """Return time, key and value of each row of both folders."""
    files = [*location.input.iterdir(), *(location.root / "others").iterdir()]
    lines = [line.split(",") for file in files for line in file.read_text("utf-8").splitlines()]
    return [{"time": f"{time.replace(' ', 'T')}.000Z", "k": k, "v": int(v)} for time, k, v in lines]


def counted(rows, names):
    """Count rows by some of their columns; Spark gives an aggregation those alone that it needs."""
    return Counter(tuple(row[name] for name in names) for row in rows)


def test_the_jobs_own_watermark_waits_and_a_wish_that_cannot_be_met_is_refused(spark, location):
    """Also one on a computed column. A run without an end is refused before anything is written."""
    shuffled(location.input, 3)
    params = {"files_per_batch": "1"}
    entry = f"{JOBS}:own_watermark"

    final = location.run(spark, "own", entry=entry, params=params, late="wait")

    assert ("FINISHED", 0) == (final.outcome, final.late_rows)
    assert 120 == sum(row[3] for row in read_with_pandas(location.output))

    other = Location(location.root / "other")
    endless = {"bounded": "no", "input": str(location.input)}
    with pytest.raises(ConfigError, match="source 'events' has none; read it with bounded=True"):
        other.run(spark, "w", entry=f"{JOBS}:late_windows", params=endless, late="wait")
    ended = {"input": str(location.input)}
    with pytest.raises(ConfigError, match="which Spark's own sink .* has not; use another sink"):
        other.run(spark, "s", entry=f"{JOBS}:to_a_sink_of_spark", params=ended, late="wait")
    assert not other.job_dir.exists()
