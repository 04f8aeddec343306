"""The ``postgres`` sink on a real PostgreSQL: once, whatever dies, and whichever driver is late."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import pickle
import sys
import threading
import time
import traceback
import uuid
from typing import Any

import psycopg
import pytest
from pyspark.sql.types import ArrayType, DecimalType, LongType, StringType, StructType

from airflow_provider.extensions.postgres.copy import (
    TargetColumn,
    columns_for,
    is_compatible,
    is_own_type,
)
from airflow_provider.extensions.postgres.sink import postgres
from airflow_provider.runtime.api.sinks import Committable, EpochId
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    CorruptDocumentError,
    LeaseLostError,
    OutageError,
    RefusedRowsError,
    RevertError,
    SinkError,
    SparkStreamError,
)
from airflow_provider.runtime.jobdir import epochs as epoch_records
from airflow_provider.runtime.testing.sink_bench import QUERY_ID
from airflow_provider.runtime.testing.sinks import RevertibleSinkContract
from tests.extensions.postgres.postgres_support import (
    SCHEMA,
    Fence,
    Frame,
    Table,
    hand_staged,
    lines_of,
    postgres_server,
    schema_of,
)
from tests.present import present
from tests.unit.support import bench, counted

pytestmark = pytest.mark.slow

A, B, C, D = (1, "a"), (2, "b"), (3, "c"), (4, "d")
UPSERT = {"keys": "id"}


@pytest.fixture(scope="module")
def server():
    with postgres_server() as url:
        yield url


@pytest.fixture
def url(server):
    """The database, empty as a new one; making one for each test takes far longer."""
    with psycopg.connect(server, autocommit=True) as connection:
        for schema in ("public", "own", "spark_stream", '"Own Books"'):
            connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        connection.execute("CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO PUBLIC")
    return server


@pytest.fixture
def table(url):
    return Table(url)


class Case:
    """One table."""

    def __init__(self, url, **options):
        self.url, self.options = url, options

    def open(self):
        return hand_staged(self.url, "t", **self.options)

    def visible(self):
        table = Table(self.url)
        return table.rows() if table.ask("SELECT to_regclass('t') IS NOT NULL")[0][0] else []

    def tampered(self, committable):
        """Name what was staged for something else, or nothing that is a staging."""
        epoch = committable.epoch
        stagings = (
            Table(self.url, **self.options).stage(
                [D], epoch=epoch.epoch + 1, query_id=epoch.query_id
            ),
            Table(self.url, "theirs").stage([D], epoch=epoch.epoch, query_id=epoch.query_id),
            Table(self.url).stage([D], epoch=epoch.epoch, token=2, query_id=epoch.query_id),
        )
        for changes in (
            *({"staged_id": theirs.data["staged_id"]} for theirs in stagings),
            {"staged_id": None},
        ):
            yield {**committable.data, **changes}


class TestSql(RevertibleSinkContract):
    """The contract, with rows staged by hand: appended, and upserted."""

    @pytest.fixture
    def make_frame(self):
        return functools.partial(Frame, schema_of(SCHEMA))

    @pytest.fixture(
        params=[{}, pytest.param(UPSERT, marks=pytest.mark.whole)], ids=["add", "upsert"]
    )
    def case(self, url, request):
        return Case(url, **request.param)


@pytest.mark.parametrize("changes", [{"columns": 7}, {"columns": [["id"]]}, {"rows": "many"}])
def test_a_record_without_its_members_is_damage(table, changes):
    """A committable with mistyped members is one line and not a traceback."""
    committable = table.stage([A])
    committable.data.update(changes)
    with pytest.raises(CorruptDocumentError, match="the record of epoch 0 of query 'q' names"):
        table.sink.commit(committable, Fence())


@pytest.mark.parametrize(
    "kind",
    ["text); DROP TABLE accounts; --", "text PRIMARY KEY", "text CHECK (true)", "mood", "", 7],
)
def test_a_type_in_a_record_makes_no_table(table, kind):
    """A new table gets the types that the sink itself writes, whatever a record says."""
    committable = table.stage([A])
    committable.data["columns"][1][1] = kind
    with pytest.raises(SinkError, match="is none that this sink gives a new one"):
        table.sink.commit(committable, Fence())

    assert [(None,)] == table.ask("SELECT to_regclass('t')")


def test_the_sinks_own_types_make_a_table(url):
    """Every type that a column of Spark's gets is one that a new table may have."""
    kinds = ("boolean", "byte", "short", "integer", "long", "float", "double", "binary", "date")
    plain = [*kinds, "timestamp", "timestamp_ntz", "string", "decimal(12,3)"]
    schema = schema_of(", ".join(f"c{n} {kind}" for n, kind in enumerate(plain)))
    for kind in (LongType(), StringType(), DecimalType(12, 3)):
        schema.add(f"c{len(schema)}", ArrayType(kind))
    schema.add("nested", StructType().add("x", "long"))

    assert [] == [c.type for c in columns_for(schema) if not is_own_type(c.type)]


# --- publishing ---------------------------------------------------------------------------------


def test_rows_are_seen_after_the_commit_and_once(table):
    """
    Staged rows are not in the table; committing twice puts them there once, and leaves no staging.
    """
    committable = table.stage([A], [B, C], [])
    assert [(None,)] == table.ask("SELECT to_regclass('t')")

    table.sink.commit(committable, Fence())
    table.sink.commit(committable, Fence())

    assert [A, B, C] == table.rows()
    assert [] == table.staging_tables()
    assert [(0, 3, 1)] == table.ask("SELECT epoch, rows, token FROM spark_stream.epochs")


def test_rows_say_which_epoch_wrote_them(table):
    """The epoch column leads to the record of the epoch, with its query and time."""
    table.publish(A)
    table.publish(B, epoch=1)

    found = table.ask(
        "SELECT t.id, e.epoch, e.query FROM t JOIN spark_stream.epochs e ON e.id = spark_epoch"
    )
    assert [(1, 0, "q"), (2, 1, "q")] == sorted(found)


def test_a_task_that_runs_twice_stages_its_rows_once(table):
    """Of two attempts of a task the first that ends counts; both read their input to the end."""
    where = EpochId("q", QUERY_ID, 0, 1)
    task, data = table.sink.begin_staging(schema_of(SCHEMA), where)
    task = pickle.loads(pickle.dumps(task))  # noqa: S301 - as Spark's workers get it
    slow = iter(lines_of([A, B]))

    def slowly():
        yield next(slow)
        assert [2] == list(task(0, lines_of([C, D])))
        yield next(slow)

    assert [2] == list(task(0, slowly()))
    assert [0] == list(task(1, []))
    staged = table.sink.end_staging(data, where)
    table.sink.commit(Committable(where, staged.data), Fence())

    assert 2 == staged.rows
    assert [C, D] == table.rows()
    assert None is next(slow, None)


def test_a_task_that_fails_leaves_nothing(table):
    """An attempt that breaks off has staged nothing, and the next stages all."""
    where = EpochId("q", QUERY_ID, 0, 1)
    task, data = table.sink.begin_staging(schema_of(SCHEMA), where)

    def broken():
        yield from lines_of([A, B])
        raise OSError

    with pytest.raises(OSError):  # noqa: PT011 - ours
        list(task(0, broken()))
    list(task(0, lines_of([A, B])))

    assert 2 == table.sink.end_staging(data, where).rows


def test_staging_an_epoch_again_replaces_what_was_staged(table):
    """A batch that failed and is run again by the same driver leaves one staging table."""
    table.stage([A])
    committable = table.stage([B])
    assert 1 == len(table.staging_tables())

    table.sink.commit(committable, Fence())
    assert [B] == table.rows()


def test_a_reader_never_sees_a_part_of_an_epoch(table):
    """
    While epochs of three rows are published, every count that a reader gets is a multiple of three.
    """
    table.publish(A, B, C)
    seen, done = [], threading.Event()

    def read():
        with psycopg.connect(table.url, autocommit=True) as connection:
            while not done.is_set():
                seen.append(present(connection.execute("SELECT count(*) FROM t").fetchone())[0])

    reader = threading.Thread(target=read)
    reader.start()
    for epoch in range(1, 15):
        table.publish(A, B, C, epoch=epoch)
    done.set()
    reader.join()

    assert 45 == table.ask("SELECT count(*) FROM t")[0][0]
    assert len(set(seen)) > 2
    assert {0} == {count % 3 for count in seen}


def test_first_users_of_a_database_may_come_at_once(url):
    """
    Four sinks make the same tables of the sink's own at once, and four tables' epochs are there.
    """
    errors = []

    def publish(name):
        try:
            Table(url, name).publish(A, query_id=str(uuid.uuid4()))
        except Exception as error:
            errors.append(error)

    racers = [threading.Thread(target=publish, args=(n,)) for n in ("a", "a", "b", "c")]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()

    assert [] == errors
    assert [(4,)] == Table(url).ask("SELECT count(*) FROM spark_stream.epochs")


@pytest.mark.parametrize("name", ['"Select"', '"Weird ""x"', "own.t"])
def test_names_are_quoted(url, name):
    """Reserved words, quotes and schemas in names mean what PostgreSQL means by them."""
    table = Table(url, name, bookkeeping_schema="Own Books")
    table.ask("CREATE SCHEMA own")
    table.publish((1, "a"), schema='Order by long, b"c string')

    assert [(1, "a")] == table.ask(f'SELECT "Order by", "b""c" FROM {name}')


# --- crashes and takeovers ----------------------------------------------------------------------


def test_a_stopped_driver_of_somebody_else_is_ended_by_the_server(url):
    """Where a session cannot be told by its name, the server ends it after the idle time-out."""
    table = Table(url, idle_timeout_s=0.5)
    committable = table.stage([A])
    with (
        table.sink._server.connect("somebody", idle_timeout_s=0.5) as connection,
        contextlib.suppress(psycopg.OperationalError),  # there is nothing left to roll back
        connection.transaction(),
    ):
        table.sink.books_in(connection).raise_fence(QUERY_ID, 1)
        table.sink.commit(committable, Fence(2))
        with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
            connection.execute("SELECT 1")

    assert [A] == table.rows()


def test_the_fence_is_not_waited_for_as_long_as_the_table(table):
    """
    Who holds the fence for longer than a second is dealt with; behind it another writer may keep an
    epoch out of the table for a minute.
    """
    table.publish(A)
    server = table.sink._server
    with server.connect("holder", idle_timeout_s=60) as holder, holder.transaction():
        table.sink.books_in(holder).raise_fence(QUERY_ID, 1)
        (waits,) = holder.execute("SHOW lock_timeout").fetchone() or ("",)
        with server.connect("waiter", idle_timeout_s=60) as waiter:
            waiter.execute("SET lock_timeout = '20s'")
            begun = time.monotonic()
            with pytest.raises(psycopg.errors.LockNotAvailable), waiter.transaction():
                table.sink.books_in(waiter).raise_fence(QUERY_ID, 1)

    assert "1min" == waits
    assert time.monotonic() - begun < 15


def test_a_driver_that_was_overtaken_is_shut_out_by_the_database(table):
    """
    Once a later driver has recovered, an earlier one commits and reverts nothing more, even if
    its lease says that it may.
    """
    first = table.publish(A)
    committable = table.stage([B], epoch=1)
    table.sink.recover(QUERY_ID, lambda epoch, token: False, Fence(2))

    with pytest.raises(LeaseLostError):
        table.sink.commit(committable, Fence(1))
    with pytest.raises(LeaseLostError):
        table.sink.revert([first], Fence(1))
    with pytest.raises(LeaseLostError):
        table.sink.recover(QUERY_ID, lambda epoch, token: True, Fence(1))
    assert [A] == table.rows()
    table.sink.commit(committable, Fence(2))
    assert [A, B] == table.rows()


def test_a_revert_in_a_database_without_books_makes_them(table):
    """
    Somebody has dropped them: nothing was published, and a commit that comes late publishes nothing.
    """
    waiting = table.stage([A])
    table.ask("DROP SCHEMA spark_stream CASCADE")
    table.sink.revert([waiting], Fence())
    table.sink.commit(waiting, Fence())

    assert [] == table.ask("SELECT tablename FROM pg_tables WHERE tablename = 't'")


def test_a_revert_of_nothing_does_nothing_and_another_keeps_writers_out(table):
    """Between the look for an epoch's rows and their end nobody else writes to the table."""
    committable = table.publish(A)
    seen: list[str] = []

    def write_beside(question):
        if question == 2:  # right before COMMIT
            with pytest.raises(psycopg.errors.LockNotAvailable):
                table.ask("SET lock_timeout = '200ms'; INSERT INTO t (id, name) VALUES (2, 'b')")
            seen.append("waits")

    table.sink.revert([], Fence())
    assert [A] == table.rows()
    table.sink.revert([committable], Fence(at=write_beside))

    assert ["waits"] == seen
    assert [] == table.rows()


HOSTILE = {
    "TimeZone": "Asia/Kolkata",
    "DateStyle": "SQL, DMY",
    "bytea_output": "escape",
    "default_transaction_isolation": "serializable",
    "statement_timeout": "5s",
    "synchronous_commit": "off",
}


def test_a_session_may_be_another_one_in_each_transaction(url):
    """Each transaction has the sink's settings and leaves none, so a pooler may share sessions."""
    with psycopg.connect(url, autocommit=True) as connection:
        for name, value in HOSTILE.items():
            connection.execute(f"ALTER ROLE owner SET {name} = '{value}'")
    found: list[Any] = []
    try:
        with Table(url).sink._server.connect("pooled", idle_timeout_s=3) as connection:
            for _ in range(2):
                with connection.transaction(), connection.transaction():
                    more = ("transaction_isolation", "idle_in_transaction_session_timeout")
                    shown = (connection.execute(f"SHOW {name}") for name in (*HOSTILE, *more))
                    found = [present(cursor.fetchone())[0] for cursor in shown]
                left = connection.execute("SELECT name FROM pg_settings WHERE source = 'session'")
                assert [] == left.fetchall()
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ALTER ROLE owner RESET ALL")

    assert ["UTC", "ISO, MDY", "hex", "serializable", "0", "on", "read committed", "3s"] == found


def test_rows_are_staged_and_published_whatever_the_roles_settings_are(url):
    """Not a statement of the sink relies on what the role or the database is set to."""
    with psycopg.connect(url, autocommit=True) as connection:
        for name, value in HOSTILE.items():
            connection.execute(f"ALTER ROLE owner SET {name} = '{value}'")
    try:
        table = Table(url, **UPSERT)
        table.publish(A, B)
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ALTER ROLE owner RESET ALL")

    assert [A, B] == table.rows()


# --- a failover that loses commits --------------------------------------------------------------


def fail_over(table, *epochs):
    """Let the database be a standby's, which had not got these epochs."""
    for epoch in epochs:
        table.ask("DELETE FROM spark_stream.epochs WHERE epoch = %s", epoch)
        table.ask("DELETE FROM t WHERE id = %s", epoch)


def test_a_commit_after_a_failover_that_lost_one_is_refused(table):
    """An epoch is not put beside a hole: what the server confirmed before must be there."""
    for epoch in range(2):
        table.publish((epoch, "x"), epoch=epoch)
    after = table.stage([(2, "x")], epoch=2)
    fail_over(table, 1)
    with pytest.raises(CheckpointError, match="epoch 1 of query id .* was committed, and is not"):
        table.sink.commit(after, Fence())

    assert [(0, "x")] == table.rows()


def test_a_failover_at_the_end_is_found_before_the_run_is_called_done(table):
    """The last look at the sinks, before the final checkpoint, finds it, too."""
    table.publish((0, "x"))
    fail_over(table, 0)
    with pytest.raises(CheckpointError, match="epoch 0 of query id .* was committed, and is not"):
        table.sink.recover(QUERY_ID, lambda *_: False, Fence())


@pytest.mark.parametrize("lose", ["the epoch", "everything"])
def test_the_next_driver_finds_that_a_failover_lost_a_commit(table, lose):
    """Another process knows from the record of the newest epoch what the database must have."""
    first, second = table.publish((0, "x")), table.publish((1, "x"), epoch=1)
    sink = Table(table.url).sink
    for committable in (first, second):
        sink.check_published(committable)
    if lose == "the epoch":
        fail_over(table, 1)
        Table(table.url).sink.check_published(first)
    else:
        table.ask("DROP SCHEMA spark_stream CASCADE")
    with pytest.raises(CheckpointError, match="epoch 1 of query id .* was committed, and is not"):
        Table(table.url).sink.check_published(second)


def test_a_start_asks_for_the_newest_published_epoch(url, tmp_path):
    """A driver that starts refuses the database before it publishes anything more."""
    table = Table(url)
    with bench(tmp_path / "job", hand_staged(table.url, table.name)) as job:
        driver = job.begun().recovered()
        for epoch in range(2):
            job.spark.plan(epoch)
            rows: Any = [(epoch, "x")]
            driver.pre_commit(rows, epoch, counted(1))
            job.spark.commit(epoch)
        driver.commit_ready()
        fail_over(table, 1)
        with pytest.raises(CheckpointError, match="epoch 1 of query id .* was committed, and is"):
            job.recovered("a later start", hand_staged(url, "t"))


# --- what is remembered does not grow -----------------------------------------------------------


@pytest.mark.parametrize("options", [{}, UPSERT], ids=["append", "upsert"])
def test_records_of_old_epochs_are_forgotten_and_stay_refused(url, options):
    """What is forgotten is neither published again nor lost; the newest epoch is always known."""
    table = Table(url, **options)
    published = [table.publish((epoch, "x"), epoch=epoch) for epoch in range(4)]
    other = table.publish((9, "x"), query_id=QUERY_ID.replace("7", "8"))
    for _ in range(2):
        table.sink.prune(QUERY_ID, [(0, 1), (3, 9)])

    known = "SELECT epoch FROM spark_stream.epochs WHERE query_id = %s ORDER BY epoch"
    assert [(2,), (3,)] == table.ask(known, QUERY_ID)
    assert [(0,)] == table.ask(known, other.epoch.query_id)
    kept = 3 if options else 0
    assert [(kept,)] == table.ask("SELECT count(*) FROM spark_stream.undo")
    with pytest.raises(CheckpointError, match="epoch 0 .* is not there, but epoch 3"):
        table.sink.commit(published[0], Fence())
    table.sink.commit(published[3], Fence())
    table.sink.revert([published[3], published[2]], Fence())
    assert [(0, "x"), (1, "x"), (9, "x")] == table.rows()


def test_a_driver_lets_the_database_forget_what_it_has_folded(url, tmp_path, monkeypatch):
    """The database keeps as many records of epochs as the job directory keeps for each."""
    monkeypatch.setattr(epoch_records, "KEEP_EPOCHS", 3)
    table = Table(url)
    with bench(tmp_path / "job", hand_staged(table.url, table.name)) as job:
        driver = job.begun().recovered("r1")
        for epoch in range(5):
            job.spark.plan(epoch)
            rows: Any = [(epoch, "x")]
            driver.pre_commit(rows, epoch, counted(1))
            job.spark.commit(epoch)
            driver.commit_ready()
        job.recovered("a later run").remove_leftovers()

    assert [(2,), (3,), (4,)] == table.ask("SELECT epoch FROM spark_stream.epochs ORDER BY epoch")
    assert 5 == len(table.rows())


def test_a_commit_whose_session_is_lost_is_tried_again(table):
    """A session that ends under the transaction, as when the server restarts, costs a try."""
    committable = table.stage([A])

    def kill(question):
        if question == 2:
            table.ask(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE application_name LIKE 'spark-stream%'"
            )

    table.sink.commit(committable, Fence(at=kill))

    assert [A] == table.rows()


def test_recovery_drops_what_is_garbage_and_nothing_else(table):
    """Staging tables are dropped if they are garbage of this query; a published epoch stays."""
    table.publish(A)
    kept = table.stage([B], epoch=1)
    table.stage([C], epoch=1, token=2)
    other = table.stage([D], epoch=1, query_id=str(uuid.uuid4()))
    for _ in range(2):
        table.sink.recover(QUERY_ID, lambda epoch, token: token == 2, Fence(3))

    expected = [f"staged_{c.data['staged_id']}" for c in (kept, other)]
    assert expected == sorted(table.staging_tables())
    assert [A] == table.rows()


def test_recovery_ends_tasks_of_an_older_driver(table):
    """
    A task of a dead driver's executor that still copies does not keep its staging table alive.
    """
    where = EpochId("q", QUERY_ID, 0, 1)
    task, _ = table.sink.begin_staging(schema_of(SCHEMA), where)

    def endless():
        yield from lines_of([A] * 600)
        table.sink.recover(QUERY_ID, lambda epoch, token: True, Fence(2))
        assert [] == table.staging_tables()
        yield from lines_of([A] * 600)

    with pytest.raises(psycopg.OperationalError):
        list(task(0, endless()))


def test_a_trigger_that_drops_rows_fails_the_epoch(table):
    """A table that does not take every row is an error, not an epoch with fewer rows."""
    table.ask(
        "CREATE TABLE t (id bigint, name text);"
        "CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;"
        "CREATE TRIGGER no BEFORE INSERT ON t FOR EACH ROW WHEN (NEW.id = 2) EXECUTE FUNCTION no()"
    )
    with pytest.raises(SinkError, match="2 rows of epoch 0 were staged, but the table took 1"):
        table.publish(A, B)
    assert [] == table.rows()


# --- upsert -------------------------------------------------------------------------------------


def test_an_upsert_replaces_the_row_with_the_same_keys(url):
    """The newest epoch's row counts, also a null in it; a repeated commit changes nothing."""
    table = Table(url, keys=["id", "part"])
    schema = "id long, part string, name string"
    table.publish((1, "x", "a"), (1, "y", "b"), schema=schema)
    second = table.publish((1, "y", None), (2, "x", "d"), epoch=1, schema=schema)
    table.sink.commit(second, Fence())

    expected = [(1, "x", "a"), (1, "y", None), (2, "x", "d")]
    assert expected == table.rows("id, part, name")


def test_a_key_that_is_there_twice_or_null_is_refused_while_staging(url):
    """Which of two rows counts would be chance, and a null equals no other: neither is staged."""
    table = Table(url, **UPSERT)

    with pytest.raises(RefusedRowsError, match=r"several rows of one key.*id = 1;.* by id first"):
        table.stage([A], [(1, "b")])
    with pytest.raises(RefusedRowsError, match="a null in id"):
        table.stage([(None, "b")])


def test_a_row_of_keys_only_is_upserted(url):
    """A table of keys alone, without an epoch column, takes a key again."""
    table = Table(url, **UPSERT, epoch_column=None)
    first = table.publish((1,), schema="id long")
    second = table.publish((1,), (2,), epoch=1, schema="id long")
    assert [(1,), (2,)] == table.rows("id")

    table.sink.revert([second, first], Fence())
    assert [] == table.rows("id")


# --- reverting --------------------------------------------------------------------------------


def test_appended_rows_are_reverted_exactly(table):
    """
    Rows of other epochs, queries and writers stay; twice is once; a late commit changes nothing.
    """
    first = table.publish(A)
    second = table.publish(B, epoch=1)
    staged = table.stage([B], epoch=2)
    table.publish(C, query_id=str(uuid.uuid4()), epoch=1)
    table.ask("INSERT INTO t VALUES (4, 'd')")
    for _ in range(2):
        table.sink.check_revert([staged, second])
        table.sink.revert([staged, second], Fence())
        table.sink.commit(staged, Fence())
        table.sink.commit(second, Fence())
        table.sink.commit(first, Fence())

    assert [A, C, D] == table.rows()
    assert [] == table.staging_tables()


def test_upserted_rows_become_what_they_were(url):
    """Reverting two epochs restores what both have replaced, and removes what they have added."""
    table = Table(url, **UPSERT)
    table.publish(A, B)
    before = table.rows("id, name, spark_epoch")
    second = table.publish((2, "x"), C, epoch=1)
    third = table.publish((2, "y"), (1, None), D, epoch=2)
    for _ in range(2):
        table.sink.check_revert([third, second])
        table.sink.revert([third, second], Fence())

    assert before == table.rows("id, name, spark_epoch")
    assert [(2,)] == table.ask("SELECT count(*) FROM spark_stream.undo")


def test_what_another_writer_changed_since_stays_as_it_left_it(url):
    """A revert touches only rows that are still as the epoch wrote them."""
    table = Table(url, **UPSERT)
    table.publish(A, B)
    second = table.publish((1, "x"), (2, "y"), C, D, epoch=1)
    table.ask("UPDATE t SET name = 'theirs' WHERE id IN (1, 3); DELETE FROM t WHERE id = 2")
    table.sink.revert([second], Fence())

    assert [(1, "theirs"), (3, "theirs")] == table.rows()


def test_a_revert_below_another_query_is_as_if_the_epoch_had_never_been(url):
    """Another query's later row stays, and taking that back gives what was there before both."""
    table = Table(url, **UPSERT)
    table.ask("CREATE TABLE t (id bigint PRIMARY KEY, name text); INSERT INTO t VALUES (1, 'mine')")
    ours = table.publish((1, "ours"), (2, "ours"))
    theirs = table.publish((1, "theirs"), (2, "theirs"), query_id=str(uuid.uuid4()))
    table.sink.revert([ours], Fence())
    assert [(1, "theirs"), (2, "theirs")] == table.rows()

    table.sink.revert([theirs], Fence())
    assert [(1, "mine")] == table.rows()


def test_every_value_is_restored_as_it_was(url):
    """
    Values that JSON cannot tell apart or hold, and columns that the query does not write, come back.
    """
    table = Table(url, **UPSERT)
    table.ask(
        "CREATE TABLE t (id bigint PRIMARY KEY, name text, j jsonb, n numeric, f float8, b bytea,"
        " a text[], z timestamptz, twice bigint GENERATED ALWAYS AS (id * 2) STORED);"
        "INSERT INTO t VALUES (1, 'a', 'null', 1.50, 'NaN', '\\x00ff', '{NULL,\"NULL\",x}',"
        " '-infinity'), (2, 'b', NULL, 'NaN', '-0', NULL, '{}', '2026-10-25 00:30:00.000001Z')"
    )
    before = table.ask("SELECT t::text FROM t ORDER BY id")
    second = table.publish((1, "x"), (2, "y"))
    assert [(1, "x"), (2, "y")] == table.rows()
    table.sink.revert([second], Fence())

    assert before == table.ask("SELECT t::text FROM t ORDER BY id")


def test_a_column_added_or_dropped_since_does_not_stand_in_the_way(url):
    """A revert after ALTER TABLE restores what still has a column."""
    table = Table(url, **UPSERT)
    table.ask("CREATE TABLE t (id bigint PRIMARY KEY, name text, gone int)")
    table.publish(A)
    second = table.publish((1, "x"), epoch=1)
    table.ask("ALTER TABLE t DROP COLUMN gone; ALTER TABLE t ADD COLUMN new int DEFAULT 7")
    table.sink.revert([second], Fence())

    assert [(1, "a", 7)] == table.rows("id, name, new")


def test_a_table_without_epoch_column_works_and_cannot_be_reverted(table):
    """
    The refusal says what to do; epochs from before that cannot be reverted, those after it can.
    """
    table.ask("CREATE TABLE t (id bigint, name text)")
    first = table.publish(A)
    with pytest.raises(RevertError, match="ALTER TABLE t ADD COLUMN spark_epoch bigint"):
        table.sink.check_revert([first])
    table.ask("ALTER TABLE t ADD COLUMN spark_epoch bigint")
    second = table.publish(B, epoch=1)

    with pytest.raises(RevertError):
        table.sink.revert([second, first], Fence())
    assert [A, B] == table.rows()
    table.sink.revert([second], Fence())
    assert [A] == table.rows()


def test_the_undo_log_is_pruned_and_older_epochs_are_refused(url):
    """What was replaced is kept for the last epochs only, and a revert beyond them is refused."""
    table = Table(url, **UPSERT, undo_epochs=2)
    first, second, third = (table.publish((1, str(n)), epoch=n) for n in range(3))

    assert [(2,)] == table.ask("SELECT count(*) FROM spark_stream.undo")
    with pytest.raises(RevertError, match="undo_epochs=2"):
        table.sink.check_revert([third, second, first])
    table.sink.revert([third, second], Fence())
    assert [(1, "0")] == table.rows()


def test_what_an_upsert_replaced_is_not_restored_by_a_key_that_was_renamed(url):
    """A revert refuses while the table's key has another name than when rows were remembered."""
    table = Table(url, **UPSERT)
    first = table.publish(A)
    table.ask("ALTER TABLE t RENAME COLUMN id TO number")

    with pytest.raises(RevertError, match="rename it back"):
        table.sink.revert([first], Fence())
    table.ask("ALTER TABLE t RENAME COLUMN number TO id")
    assert [A] == table.rows()
    table.sink.revert([first], Fence())
    assert [] == table.rows()


def test_without_an_undo_log_an_upsert_is_not_reverted(url):
    """``undo_epochs=0`` writes no undo log, and says so when it is needed."""
    table = Table(url, **UPSERT, undo_epochs=0)
    first = table.publish(A)

    assert [(0,)] == table.ask("SELECT count(*) FROM spark_stream.undo")
    with pytest.raises(RevertError, match="undo_epochs=0"):
        table.sink.check_revert([first])


@pytest.mark.parametrize(
    ("undo_epochs", "writes", "rows"),
    [(1, "waits", [A]), (0, "goes on", [A, B])],
    ids=["undo log", "none"],
)
def test_other_writers_wait_only_for_an_upsert_that_is_remembered(url, undo_epochs, writes, rows):
    """Between what a row was and what it became nobody writes to the table; everybody may read."""
    table = Table(url, **UPSERT, undo_epochs=undo_epochs)
    table.publish(A)
    seen: list[Any] = []

    def write_beside(question):
        if question != 2:  # the first is asked before the transaction
            return
        try:
            table.ask("SET lock_timeout = '200ms'; INSERT INTO t (id, name) VALUES (2, 'b')")
            seen.append("goes on")
        except psycopg.errors.LockNotAvailable:
            seen.append("waits")
        seen.append(table.rows())

    table.sink.commit(table.stage([C], epoch=1), Fence(at=write_beside))

    assert [writes, rows] == seen
    assert [*rows, C] == table.rows()


# --- what is refused before anything is written -------------------------------------------------


@pytest.mark.parametrize(
    ("options", "output_mode", "says"),
    [
        ({"sequence_by": "id"}, "append", "there is no keys="),
        ({}, "update", "needs keys="),
        ({}, "complete", "use 'update'"),
        (UPSERT, "complete", "use 'update'"),
        ({"keys": "nope"}, "append", "no column 'nope'"),
        ({"epoch_column": "name"}, "append", "choose another name"),
        ({**UPSERT, "undo_epochs": -1}, "append", "undo_epochs=-1"),
    ],
)
def test_options_that_cannot_work_are_refused(url, options, output_mode, says):
    """Each refusal names the option."""
    with pytest.raises(ConfigError, match=says):
        Table(url, **options).sink.check(Frame(schema_of(SCHEMA)), output_mode)


@pytest.mark.parametrize(
    ("made", "options", "says"),
    [
        ("TABLE t (id bigint)", {}, "no column 'name'"),
        ("TABLE t (id int, name text)", {}, "'id' has type integer"),
        ("TABLE t (id bigint, name text, x int NOT NULL)", {}, "'x' is NOT NULL"),
        ("TABLE t (id bigint, name text)", UPSERT, "no unique constraint"),
        ("TABLE t (id bigint UNIQUE DEFERRABLE, name text)", UPSERT, "no unique constraint"),
        ("TABLE t (id bigint, name text, UNIQUE (id, name))", UPSERT, "no unique constraint"),
        ("TABLE t (id bigint, name text, spark_epoch int)", {}, "must be bigint"),
        ("TABLE t (id bigint GENERATED ALWAYS AS IDENTITY, name text)", {}, "is generated"),
        ("VIEW t AS SELECT 1::bigint id, ''::text AS name", {}, "is not a table"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(url, made, options, says):
    """Each refusal names the column."""
    table = Table(url, **options)
    table.ask(f"CREATE {made}")

    with pytest.raises(ConfigError, match=says):
        table.sink.check(Frame(schema_of(SCHEMA)), "append")


def test_a_table_that_fits_is_accepted_and_nothing_is_written(url):
    """Checking makes neither the table nor the sink's own tables."""
    for name, options in {"t": {}, "u": UPSERT}.items():
        Table(url, name, **options).sink.check(Frame(schema_of(SCHEMA)), "append")
    assert [(0,)] == Table(url).ask(
        "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE nspname IN ('public', 'spark_stream')"
    )

    table = Table(url, "v", **UPSERT)
    table.ask("CREATE TABLE v (name varchar(9), id numeric UNIQUE, more int, spark_epoch bigint)")
    table.sink.check(Frame(schema_of(SCHEMA)), "update")
    table.publish(A)
    assert [(1, "a", None)] == table.rows("id, name, more")


def test_a_missing_permission_is_found_before_anything_is_written(url):
    """A user who may not write is told which GRANT is missing."""
    table = Table(url)
    table.ask("CREATE TABLE t (id bigint, name text)")
    for statement in ("DROP ROLE IF EXISTS guest", "CREATE ROLE guest LOGIN"):
        table.ask(statement)
    guest = Table(url.replace("owner@", "guest@"))
    frame = Frame(schema_of(SCHEMA))

    with pytest.raises(ConfigError, match="CREATE SCHEMA spark_stream AUTHORIZATION"):
        guest.sink.check(frame, "append")
    table.ask("CREATE SCHEMA spark_stream AUTHORIZATION guest")
    with pytest.raises(ConfigError, match="GRANT INSERT"):
        guest.sink.check(frame, "append")
    table.ask("GRANT INSERT, SELECT ON t TO guest")
    guest.sink.check(frame, "append")
    guest.publish(A)
    assert [A] == table.rows()


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("a void", "'a': Spark's type void"),
        ("a long, a string", "'a' is there twice"),
        (f"{'ž' * 32} long", "1 to 63 bytes"),
    ],
)
def test_columns_that_have_no_counterpart_are_refused(table, schema, says):
    """The refusal names the column."""
    with pytest.raises(ConfigError, match=says):
        table.sink.check(Frame(schema_of(schema)), "append")


@pytest.mark.parametrize(
    ("rows", "there", "fits"),
    [
        ("integer", "bigint", True),
        ("bigint", "integer", False),
        ("bigint", "double precision", False),
        ("text", "uuid", True),
        ("date", "text", True),
        ("numeric(10,2)", "numeric(12,2)", True),
        ("numeric(10,2)", "numeric(12,5)", False),
        ("numeric(10,2)", "numeric", True),
        ("integer", "integer[]", False),
        ("jsonb", "json", True),
        ("timestamp with time zone", "timestamp without time zone", False),
    ],
)
def test_a_column_fits_if_it_holds_every_value_unchanged(rows, there, fits):
    """Wider types take narrower ones; nothing is rounded, cut or shifted."""
    assert fits is is_compatible(TargetColumn("a", rows), TargetColumn("a", there))


@pytest.mark.parametrize("address", ["mysql://u@h/d", "jdbc:postgresql://h/d", "host=h", ""])
def test_another_address_is_refused(address):
    """Only PostgreSQL's own addresses are taken."""
    with pytest.raises(ConfigError, match="must be postgresql://"):
        postgres(address, "t")


@pytest.mark.parametrize("name", ["", "a.b.c", ".t", "t.", 'a"b'])
def test_a_name_that_is_none_is_refused(url, name):
    """A table's name has one or two parts."""
    with pytest.raises(ConfigError, match=r"write table or schema\.table"):
        postgres(url, name)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("owner@/postgres?host=", "owner@127.0.0.1:1/postgres?passfile="), OutageError),
        (("?host=", "?host=/nowhere"), OutageError),
        (("/postgres?", "/another?"), ConfigError),
        (("owner@", "stranger@"), ConfigError),
    ],
    ids=["no port", "no socket", "no database", "no role"],
)
def test_a_database_that_does_not_answer_is_no_mistake(url, change, expected):
    """A server that is away is waited for by retries; one that answers no is a mistake."""
    with pytest.raises(SparkStreamError) as caught:
        Table(url.replace(*change)).sink.check(Frame(schema_of(SCHEMA)), "append")

    assert expected is type(caught.value)


def test_the_password_is_shown_nowhere(url):
    """Neither name, repr, errors, their tracebacks nor committables hold the password."""
    secret = "s3cr3t-wörd"  # noqa: S105 - made up
    with_secret = url.replace("owner@", f"owner:{secret}@")
    table = Table(with_secret)
    committable = table.publish(A)
    task, _ = table.sink.begin_staging(schema_of(SCHEMA), EpochId("q", QUERY_ID, 1, 1))
    shown = [table.sink.name, repr(table.sink), repr(committable), repr(task)]
    shown += [repr(vars(table.sink)), str(dataclasses.asdict(committable))]
    for bad in (with_secret.replace("host=", "host=/nowhere"), with_secret + "&port=x"):
        with pytest.raises(SparkStreamError) as caught:
            Table(bad).sink.check(Frame(schema_of(SCHEMA)), "append")
        shown += traceback.format_exception(caught.value)
    with pytest.raises(ConfigError) as caught:
        postgres(f"postgresql://u:{secret}@[::1/d", "t")
    shown += traceback.format_exception(caught.value)

    assert secret == task.server.parameters["password"]
    assert [] == [text for text in shown if secret in text and "with_secret" not in text]


def test_a_missing_extra_is_named(monkeypatch):
    """Without the client the error says what to install."""
    monkeypatch.setitem(sys.modules, "psycopg", None)

    with pytest.raises(ConfigError, match=r"airflow-provider-spark-streaming\[postgres\]"):
        postgres("postgresql://h/d", "t")
