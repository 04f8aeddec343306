"""The ``postgres`` sink by key: newest change, deletes, late changes, reverts; a real server."""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import given, settings

from airflow_provider.extensions.postgres.sink import postgres
from airflow_provider.runtime.api.sinks import Committable, EpochId
from airflow_provider.runtime.errors import ConfigError, RefusedRowsError
from airflow_provider.runtime.sinks.keyed_rows import KeyedRows
from airflow_provider.runtime.testing.sink_bench import QUERY_ID
from tests.extensions.keyed_stories import Story, stories
from tests.extensions.keyed_support import KEYED, Change, newest_of, table_of
from tests.extensions.postgres.postgres_support import (
    Fence,
    Frame,
    lines_of,
    postgres_server,
    schema_of,
)

pytestmark = pytest.mark.slow

OTHER = QUERY_ID.replace("7", "8")
SCHEMA = "id long, at long, name string, op string"


@pytest.fixture(scope="module")
def server():
    with postgres_server() as url:
        yield url


class Table:
    """One table by key."""

    def __init__(self, url, **words):
        self.url, self.words = url, {**KEYED, **words}

    def open(self):
        return postgres(self.url, "t", **self.words)

    def stage(self, epoch, changes, query_id=QUERY_ID):
        """Stage as Spark's tasks do, a stand-in for Spark's reduction."""
        sink, where = self.open(), EpochId("q", query_id, epoch, 1)
        task, data = sink.begin_staging(schema_of(SCHEMA), where)
        keyed = KeyedRows.of(**self.words)
        rows = [
            (*row.values(), row["op"] == "d")
            for row in newest_of(table_of(changes).to_pylist(), keyed)
        ]
        for number in range(2):
            part = rows[number::2]
            assert [len(part)] == list(task(number, lines_of(part)))
        return Committable(where, sink.end_staging(data, where).data)

    def publish(self, epoch, *changes, query_id=QUERY_ID):
        committable = self.stage(epoch, changes, query_id)
        self.open().commit(committable, Fence())
        return committable

    def revert(self, *committables):
        self.open().check_revert(committables)
        self.open().revert(committables, Fence())

    def ask(self, query):
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query)
            return cursor.fetchall() if cursor.description else []

    def rows(self):
        if self.ask("SELECT to_regclass('t')") == [(None,)]:
            return []
        return sorted(self.ask("SELECT id, at, name, op FROM t"))

    def names(self):
        return {row[0]: row[2] for row in self.rows()}

    def compact(self):
        """Move the rows within the table."""
        if self.ask("SELECT to_regclass('t')") != [(None,)]:
            self.ask("VACUUM FULL t")


def emptied(server):
    """Empty the database; making one takes far longer."""
    with psycopg.connect(server, autocommit=True) as connection:
        for schema in ("public", "spark_stream"):
            connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        connection.execute("CREATE SCHEMA public")
    return server


@pytest.fixture
def table(server):
    return Table(emptied(server))


def test_the_newest_change_of_a_key_counts_in_any_epoch(table):
    """A late change changes nothing, and all columns are stored as they are."""
    table.publish(0, Change(1, 5, "five"), Change(1, 3, "three"), Change(2, 1, "one"))
    table.publish(1, Change(1, 4, "four"), Change(2, 2, "two"))

    assert [(1, 5, "five", "u"), (2, 2, "two", "u")] == table.rows()


def test_a_deleted_key_stays_away_from_older_changes(table):
    """Also when the key was not there, and only a newer change brings it back."""
    table.publish(0, Change(1, 1, "a"), Change(2, 9, deletes=True))
    table.publish(1, Change(1, 5, deletes=True))
    table.publish(2, Change(1, 4, "late"), Change(2, 8, "late"))
    assert [] == table.rows()

    table.publish(3, Change(1, 6, "new"), Change(2, 9, deletes=True))
    assert {1: "new"} == table.names()


@pytest.mark.parametrize("other", [Change(7, 5, "b"), Change(7, 5, deletes=True)])
def test_two_changes_of_which_neither_is_newer_are_refused_by_name(table, other):
    """While they are staged, and against the table before anything is published."""
    with pytest.raises(RefusedRowsError, match=r"epoch has another row.*same at.*id = 7;"):
        table.stage(0, [Change(7, 5, "a"), other])
    table.publish(0, Change(7, 5, "a"), Change(8, 1, "b"))
    with pytest.raises(RefusedRowsError, match=r"epoch 1 has another row.*id = 7"):
        table.publish(1, other, Change(8, 2, "c"))

    assert {7: "a", 8: "b"} == table.names()


def test_texts_are_ordered_by_their_bytes(server):
    """As Spark orders them, whatever collation the database has."""
    table = Table(emptied(server), sequence_by="name")
    table.publish(0, Change(1, 1, "a"), Change(1, 2, "B"))
    table.publish(1, Change(1, 3, "Z"))

    assert {1: "a"} == table.names()


def test_without_a_sequence_the_later_epoch_counts(server):
    """A late change is not known to be late; a delete leaves nothing."""
    table = Table(emptied(server), sequence_by=())
    table.publish(0, Change(1, 5, "a"), Change(2, 5, "b"))
    second = table.publish(1, Change(1, 4, "later"), Change(2, 1, deletes=True))
    third = table.publish(2, Change(2, 0, "back"), Change(3, 0, deletes=True))
    assert {1: "later", 2: "back"} == table.names()

    table.revert(third, second)
    assert {1: "a", 2: "b"} == table.names()


def test_a_revert_gives_what_was_there_before(table):
    """Rows, deletes and keys that were not there; twice is once; late commits change nothing."""
    table.publish(0, Change(1, 1, "a"), Change(2, 1, "b"), Change(3, 5, deletes=True))
    before = table.rows()
    first = table.publish(1, Change(1, 2, "x"), Change(2, 2, deletes=True), Change(4, 1, "d"))
    second = table.publish(2, Change(1, 3, "y"), Change(3, 6, "c"), Change(2, 7, "back"))
    for _ in range(2):
        table.revert(second, first)
        for late in (first, second):
            table.open().commit(late, Fence())
    assert before == table.rows()

    table.publish(0, Change(3, 5, deletes=True), Change(3, 4, "late"), query_id=OTHER)
    table.publish(1, Change(2, 2, "two"), query_id=OTHER)
    assert {1: "a", 2: "two"} == table.names()


def test_deletes_below_another_query_are_reverted_below_it(table):
    """Its later row stays, and reverting that gives what was there before both."""
    table.publish(0, Change(1, 1, "a"))
    ours = table.publish(1, Change(1, 2, deletes=True))
    theirs = table.publish(0, Change(1, 3, "theirs"), query_id=OTHER)
    table.revert(ours)
    assert {1: "theirs"} == table.names()

    table.revert(theirs)
    assert {1: "a"} == table.names()


def test_other_keys_than_the_tables_are_refused(table):
    """Deleted keys are recorded by the columns that the first job has named."""
    table.publish(0, Change(1, 1, deletes=True))
    table.ask("ALTER TABLE t ADD UNIQUE (name)")
    other = postgres(table.url, "t", **{**KEYED, "keys": "name", "delete_when": None})
    with pytest.raises(ConfigError, match="recorded by id, at, and keys= .* name name, at"):
        other.check(Frame(schema_of(SCHEMA)), "append")


@pytest.mark.long
@settings(max_examples=30)  # each takes a second or two
@given(steps=stories)
def test_any_story_ends_with_what_the_rules_say(steps, server):
    """Late changes, deletes, equal sequences, deaths, reverts, another query, another writer."""
    Story(Table(emptied(server))).play(steps)
