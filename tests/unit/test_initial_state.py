"""Beginning a job from a savepoint, with the same partitions or others; Spark's part by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.checkpoint.topology import OperatorShape, Topology
from airflow_provider.runtime.cli import main
from airflow_provider.runtime.driver.initial_state import StartingPoint
from airflow_provider.runtime.errors import EXIT_OK, EXIT_USAGE, CheckpointError, ConfigError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.savepoints.catalog import open_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import checkpoint_source
from airflow_provider.runtime.savepoints.restore import Restore
from airflow_provider.runtime.savepoints.restore_plan import RestoreSettings
from airflow_provider.runtime.savepoints.restores import Restores
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import identified
from tests.present import present
from tests.unit.support import EpochBench, FakeClock

OPERATOR = {"id": 0, "name": "stateStoreSave", "partitions": 2, "provider": "rocksdb"}
FITS = Topology(("events",), (OperatorShape(0, "stateStoreSave"),), "rocksdb")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def directory(tmp_path) -> JobDirectory:
    return JobDirectory(LocalStorage(str(tmp_path / "new")))


@pytest.fixture
def url(tmp_path, clock) -> str:
    """Return the address of a savepoint that says that its query keeps state."""
    spark = EpochBench(tmp_path / "old").spark.begin()
    spark.storage.put("sources/0/0", b"v1")
    spark.run(0).run(1)
    saved = take_savepoint(
        checkpoint_source(str(spark.root), "q"), str(tmp_path / "saved"), clock=clock
    )
    tell(saved.url, operators=[OPERATOR])
    return saved.url


def tell(url, **changed) -> None:
    """Let a savepoint say something else of its query."""
    location = LocalStorage(url)
    manifest = json.loads(location.read("savepoint.json"))
    manifest["queries"]["q"].update(changed)
    location.put("savepoint.json", json.dumps(manifest).encode())


def append_batch(root):
    """Return a repartition that appends a batch as Spark does."""

    def repartition(_, logs, partitions):
        batch = logs.position().last_commit + 1
        EpochBench(root).spark.plan(batch).commit(batch)
        (root / "spread").write_text(str(partitions))

    return repartition


def start(directory, url, *, topology=FITS, allow=False, partitions=None, repartition=None):
    query: Any = SimpleNamespace(name="q", topology=topology, fingerprint=None, sources=())
    return StartingPoint(
        directory,
        url,
        [query],
        allow_non_restored=allow,
        partitions=partitions,
        make_repartition=lambda: repartition,
    )


def begin(directory, url, clock, **how) -> None:
    point = start(directory, url, **how)
    point.check()
    point.restore(OpenFence(), clock)


def logs_of(directory):
    return EpochBench(Path(directory.url)).spark.logs


def test_the_batch_of_other_partitions_is_not_expected_in_the_outputs(
    directory, url, clock, tmp_path
):
    """Epochs go on after the batch that Spark has appended, which has written nothing."""
    repartition = append_batch(tmp_path / "new")
    begin(directory, url, clock, partitions=5, repartition=repartition)

    assert "5" == (tmp_path / "new/spread").read_text()
    assert 2 == logs_of(directory).position().last_commit
    bench = EpochBench(tmp_path / "new")
    bench.recovered()
    bench.close()
    assert 5 == present(Restores(directory).last()).plan.partitions


def test_as_many_partitions_as_there_are(directory, url, clock):
    """There is nothing to do for Spark, which would refuse it."""
    begin(directory, url, clock, partitions=2, repartition=lambda *_: pytest.fail("called"))

    assert 1 == logs_of(directory).position().last_commit


def test_an_open_restore_may_be_ended_with_other_partitions(directory, url, clock, tmp_path):
    """What Spark has failed at is left behind, under an id that nobody uses again."""

    def fail(*_):
        raise CheckpointError("no")

    with pytest.raises(CheckpointError, match="no"):
        begin(directory, url, clock, partitions=5, repartition=fail)
    first = present(Restores(directory).last())
    with pytest.raises(CheckpointError, match="did not end"):
        start(directory, None).check()
    begin(directory, url, clock)

    last = present(Restores(directory).last())
    assert (1, 5, True) == (first.number, first.plan.partitions, first.is_open)
    assert (2, None, False) == (last.number, last.plan.partitions, last.is_open)
    assert first.plan.queries["q"]["query_id"] != last.plan.queries["q"]["query_id"]
    assert logs_of(directory).query_id() == last.plan.queries["q"]["query_id"]


def test_a_beginning_whose_place_a_restore_has_taken_is_not_begun_again(
    directory, url, clock, tmp_path
):
    """The task that names the first savepoint goes on from where a person has set the job."""
    identified(directory.storage)
    first = open_savepoint(url)
    Restore(directory, OpenFence(), clock).begin(RestoreSettings(first, {"q": "q"}))
    spark = EpochBench(tmp_path / "other").spark.begin().run(0)
    spark.storage.put("sources/0/0", b"v1")
    other = take_savepoint(
        checkpoint_source(str(spark.root), "q"), str(tmp_path / "earlier"), clock=clock
    )
    settings = RestoreSettings(other, {"q": "q"}, supersedes=True)
    Restore(directory, OpenFence(), clock).run(settings)
    put = logs_of(directory).query_id()

    point = start(directory, url, topology=Topology(("events",), ()))
    point.check()
    point.restore(OpenFence(), clock)

    assert (put, 0) == (logs_of(directory).query_id(), logs_of(directory).position().last_commit)
    with pytest.raises(ConfigError, match="begun from .* already, with partitions=None, and 5"):
        start(directory, url, partitions=5).check()


def test_a_fork_that_was_cut_short_is_ended_by_another(directory, url, clock, tmp_path, capsys):
    """The same command completes it; a job that is there is not forked into."""
    identified(directory.storage)
    settings = RestoreSettings(open_savepoint(url), {"q": "q"}, partitions=5)
    Restore(directory, OpenFence(), clock).begin(settings)
    (tmp_path / "new/queries/q/checkpoint").mkdir(parents=True)

    assert EXIT_OK == main.main(["savepoint", "fork", url, directory.url])
    assert 1 == logs_of(directory).position().last_commit
    assert EXIT_USAGE == main.main(["savepoint", "fork", url, directory.url])
    assert "there is a job already; name a new directory" in capsys.readouterr().err


@pytest.mark.parametrize("partitions", ["0", "32769", "2147483648"])
@pytest.mark.parametrize("action", ["restore", "fork", "run"])
def test_so_many_partitions_cannot_be(directory, url, capsys, action, partitions):
    """One line, before Spark is started and anything is copied."""
    commands = {
        "run": ["run", directory.url, "--entry", f"{__file__}:start", "--from-savepoint", url],
        "restore": ["savepoint", "restore", url, directory.url],
        "fork": ["savepoint", "fork", url, directory.url],
    }
    assert EXIT_USAGE == main.main([*commands[action], "--state-partitions", partitions])
    error = f"spark-stream: error: partitions {partitions}: state has from 1 to 32768 partitions\n"
    assert error == capsys.readouterr().err
    assert not directory.storage.exists("")


def test_whoever_ends_a_restore_with_partitions_needs_spark(directory, url, clock):
    """It is not ended as if nobody had asked for them."""
    savepoint = open_savepoint(url)
    settings = RestoreSettings(savepoint, {"q": "q"}, partitions=5)
    begun = Restore(directory, OpenFence(), clock).begin(settings)

    with pytest.raises(CheckpointError, match="savepoint restore .* --state-partitions 5"):
        Restore(directory, OpenFence(), clock).finish(begun, savepoint)


@pytest.mark.parametrize(
    ("told", "partitions", "said"),
    [
        ({"operators": []}, 5, "no query in it keeps state; restore it without partitions"),
        ({"operators": [{**OPERATOR, "provider": "hdfs"}]}, 5, "keeps it in hdfs, and Spark"),
        ({"operators": [{**OPERATOR, "name": "globalLimit"}]}, 5, "does not know how to"),
        ({"operators": [{**OPERATOR, "partitions": 1}]}, 5, "has no keys, so it always has one"),
        ({"planned": True}, 5, "batch 2 was in flight.*take an aligned savepoint"),
    ],
)
def test_what_cannot_be_repartitioned(directory, url, told, partitions, said):
    """The operator or the batch in the way is named, and nothing is written."""
    tell(url, **told)
    topology = FITS if told.get("operators") is None else None
    topology = topology or Topology(
        (None,), tuple(OperatorShape(o["id"], o["name"]) for o in told["operators"])
    )
    with pytest.raises(ConfigError, match=said):
        start(directory, url, topology=topology, partitions=partitions).check()
    assert not directory.storage.exists("")


def test_state_without_keys_is_known_by_its_schema(directory, url):
    """Also where one partition was planned, which says nothing: Spark would lose its only row."""
    schema = b'v2\x00{"type":"struct","fields":[]}'
    location = LocalStorage(url)
    location.put("queries/q/state/0/0/_metadata/schema", schema)
    files = json.loads(location.read("savepoint.json"))["queries"]["q"]["files"]
    tell(url, files=[*files, ["state/0/0/_metadata/schema", len(schema)]])

    with pytest.raises(ConfigError, match="has no keys, so it always has one"):
        start(directory, url, partitions=5).check()


def test_a_query_that_does_not_fit(directory, url, clock, caplog):
    """It is refused with both sides named, or begins anew when that is allowed, with a warning."""
    changed = Topology(("events", "more"), FITS.operators)
    said = r"query 'q' does not fit .*expected 1 source, found 2 sources \(events, more\)"
    with pytest.raises(ConfigError, match=said):
        start(directory, url, topology=changed).check()
    assert not directory.storage.exists("")

    begin(directory, url, clock, topology=changed, allow=True)

    assert not logs_of(directory).exists()
    assert "it is reset, without its state" in caplog.text


def set_to_its_own(directory, url, clock, name):
    """Set a job that began with *url* to a savepoint of its own; it has begun all the same.

    While that is cut short, it is refused with the command that ends it.
    """
    begin(directory, url, clock)
    own = checkpoint_source(directory.checkpoint("q").url, "q")
    chosen = take_savepoint(own, f"{directory.url}/savepoints/{name}", clock=clock)
    begun = Restore(directory, OpenFence(), clock).begin(RestoreSettings(chosen, {"q": "q"}))

    with pytest.raises(CheckpointError, match="did not end; to end it: .*savepoint restore"):
        start(directory, url).check()
    Restore(directory, OpenFence(), clock).finish(begun, chosen)
    query_id = logs_of(directory).query_id()
    begin(directory, url, clock, topology=Topology(("events",), None))  # there is no real state

    assert query_id == logs_of(directory).query_id()
    return chosen


@pytest.mark.slow
def test_a_job_that_was_rewound_has_begun_all_the_same(directory, url, clock):
    """
    The run in the place of another one asks for the savepoint that the job began from: it continues
    from where the rewind has set it; one that was cut short is ended first.
    """
    rewind = set_to_its_own(directory, url, clock, "rewind-r1")

    with pytest.raises(ConfigError, match="partitions=None, and 5 are requested now"):
        start(directory, url, partitions=5).check()
    with pytest.raises(ConfigError, match="was set to .*saved before, not to .*rewind-r1"):
        start(directory, rewind.url).check()


@pytest.mark.slow
def test_a_job_that_a_person_has_set_to_another_savepoint_goes_on_from_there(directory, url, clock):
    """A task's from_savepoint is where its job has begun; each scheduled run names it again."""
    set_to_its_own(directory, url, clock, "chosen")
