"""Slices of PostgreSQL tables without Spark: replaced at once, restored, left to a replay."""

from __future__ import annotations

import datetime as dt

import psycopg
import pytest

from airflow_provider.extensions.postgres.failpoints import ALL
from airflow_provider.extensions.postgres.sink import postgres
from airflow_provider.runtime.api.sinks import Committable, EpochId, OpenFence
from airflow_provider.runtime.errors import (
    ConfigError,
    LeaseLostError,
    RefusedRowsError,
    RevertError,
)
from airflow_provider.runtime.testing.sink_bench import QUERY_ID, Child, LosingFence
from tests.extensions.postgres.postgres_support import (
    Frame,
    lines_of,
    new_database,
    postgres_server,
    schema_of,
)

pytestmark = pytest.mark.slow

SCHEMA = "day date, at timestamp, name string"
FIRST, SECOND, THIRD = (dt.date(2026, 1, day) for day in (1, 2, 3))


def row(day, name, hour=1):
    at = dt.datetime.combine(day or FIRST, dt.time(hour), dt.timezone.utc)
    return (day, at, name)


OTHERS = [row(FIRST, "a"), row(None, "d")]
OLD = [row(SECOND, "b"), row(SECOND, "it's c", hour=2)]
NEW = [row(SECOND, "new", hour=7)]
DAY = f"day = DATE '{SECOND}'"


@pytest.fixture(scope="module")
def server():
    with postgres_server() as url:
        yield url


@pytest.fixture
def url(server):
    """The address of a database whose table ``t`` has rows of several days."""
    made = new_database(server)
    with psycopg.connect(made, autocommit=True) as connection:
        connection.execute(
            "create table t (day date, at timestamptz, name text, spark_epoch bigint)"
        )
        connection.cursor().executemany("insert into t values (%s, %s, %s)", [*OTHERS, *OLD])
    return made


def staged(sink, *rows, query=0):
    """Stage as Spark's tasks do."""
    epoch = EpochId("q", QUERY_ID[:-2] + f"{query:02d}", 0, 1)
    task, data = sink.begin_staging(schema_of(SCHEMA), epoch)
    for number in range(2):
        part = rows[number::2]
        assert [len(part)] == list(task(number, lines_of(part)))
    return Committable(epoch, sink.end_staging(data, epoch).data)


def replaced(url, *rows, query=0, replace=DAY, **words):
    sink = postgres(url, "t", replace=replace, **words)
    committable = staged(sink, *rows, query=query)
    sink.commit(committable, OpenFence())
    return sink, committable


def seen(url, columns="day, at, name"):
    with psycopg.connect(url) as connection:
        return sorted(connection.execute(f"select {columns} from t").fetchall(), key=str)


def truth(*rows):
    return sorted(rows, key=str)


def execute(url, statement, *values):
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement, values or None)


@pytest.mark.parametrize(
    ("replace", "stay"),
    [
        (DAY, []),
        ("at >= '2026-01-02T02:00:00Z' AND at < '2026-01-03T01:00:00+01:00'", OLD[:1]),
        ("day = '2026-01-02' AND name >= 'b' AND name < 'c'", OLD[1:]),
    ],
)
def test_one_transaction_replaces_exactly_the_slice(url, replace, stay):
    """Rows of other days stay; nulls are outside."""
    replaced(url, replace=replace)

    assert truth(*OTHERS, *stay) == seen(url)


def test_a_commit_twice_is_a_commit(url):
    """A repeated commit does not replace what has been written into the slice since."""
    sink, committable = replaced(url, *NEW)
    theirs = row(SECOND, "theirs")
    execute(url, "insert into t values (%s, %s, %s)", *theirs)
    sink.commit(committable, OpenFence())

    assert truth(*OTHERS, *NEW, theirs) == seen(url)


@pytest.mark.parametrize("point", [name for name in ALL if "commit" in name])
def test_a_process_that_dies_in_its_commit(url, point):
    """A reader sees the old slice or the new one; another process completes the commit."""
    sink = postgres(url, "t", replace=DAY)
    committable = staged(sink, *NEW)
    code, _ = Child(sink, "commit", [committable], fails_at=point).wait()
    assert code != 0
    assert seen(url) in (truth(*OTHERS, *OLD), truth(*OTHERS, *NEW))
    sink.commit(committable, OpenFence())

    assert truth(*OTHERS, *NEW) == seen(url)


def test_a_driver_that_lost_its_lease_replaces_nothing(url):
    """The fence is checked in the transaction."""
    sink = postgres(url, "t", replace=DAY)
    committable = staged(sink, *NEW)
    with pytest.raises(LeaseLostError):
        sink.commit(committable, LosingFence(2))

    assert truth(*OTHERS, *OLD) == seen(url)


@pytest.mark.parametrize("rows", [NEW, []], ids=["with rows", "an empty run"])
def test_a_revert_restores_what_was_replaced(url, rows):
    """Rows that another program has added since stay; a late commit has no effect."""
    sink, committable = replaced(url, *rows)
    execute(url, "insert into t values (%s, %s, %s)", *row(THIRD, "theirs"))
    sink.check_revert([committable])
    for _ in range(2):
        sink.revert([committable], OpenFence())
    sink.commit(committable, OpenFence())

    assert truth(*OTHERS, *OLD, row(THIRD, "theirs")) == seen(url)


@pytest.mark.parametrize("point", [name for name in ALL if "revert" in name])
def test_a_process_that_dies_in_its_revert(url, point):
    """Another process completes the revert."""
    sink, committable = replaced(url, *NEW)
    code, _ = Child(sink, "revert", [committable], fails_at=point).wait()
    assert code != 0
    sink.revert([committable], OpenFence())

    assert truth(*OTHERS, *OLD) == seen(url)


def test_what_cannot_be_restored_exactly_is_refused(url):
    """What another writer has replaced since, and what no undo log has; nothing changes."""
    sink, first = replaced(url, *NEW)
    replaced(url, row(SECOND, "newer"), query=1)
    with pytest.raises(RevertError, match="with 1 rows, and 0 of them are left"):
        sink.check_revert([first])
    without, second = replaced(url, row(FIRST, "x"), query=2, replace="name = 'x'", undo_epochs=0)
    with pytest.raises(RevertError, match="undo_epochs=0"):
        without.check_revert([second])

    assert truth(*OTHERS, row(SECOND, "newer"), row(FIRST, "x")) == seen(url)


def test_a_replay_leaves_the_rows_until_its_commit(url):
    """Between the two a late commit of the old run has no effect; then its rows are replaced."""
    sink, first = replaced(url, *NEW)
    assert sink.will_replace([first])
    assert not postgres(url, "t", replace="name = 'x'").will_replace([first])
    for _ in range(2):
        sink.supersede([first], OpenFence())
    assert truth(*OTHERS, *NEW) == seen(url)
    replaced(url, row(SECOND, "newer"), query=1)
    sink.commit(first, OpenFence())

    assert truth(*OTHERS, row(SECOND, "newer")) == seen(url)


def test_a_row_outside_of_the_slice_is_refused_when_it_is_staged(url):
    """Also one whose day is null; nothing is published."""
    sink = postgres(url, "t", replace=DAY)
    with pytest.raises(RefusedRowsError, match="2 rows are not in the slice"):
        staged(sink, *NEW, row(THIRD, "out"), row(None, "no day"))

    assert truth(*OTHERS, *OLD) == seen(url)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"replace": "week = 1"}, "there is no column 'week'"),
        ({"replace": DAY, "keys": "name"}, "give one of them"),
    ],
)
def test_what_is_no_slice_is_refused_before_anything_is_written(url, words, says):
    """The error names the sink and the words."""
    sink = postgres(url, "t", **words)
    with pytest.raises(ConfigError, match=says):
        sink.check(Frame(schema_of(SCHEMA)), "append")

    assert truth(*OTHERS, *OLD) == seen(url)
