"""Facts of job directories: each thing that may go back, or reads an old version, is found."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable

from airflow_provider.extensions.maintenance.decision import Published, why_revertible
from airflow_provider.extensions.maintenance.facts import NamedVersion, collect
from airflow_provider.runtime.jobdir.epoch_documents import HistoryRecord
from airflow_provider.runtime.jobdir.query_reports import FinalQuery, PublishedSink
from airflow_provider.runtime.jobdir.upgrade_record import (
    UpgradeRecord,
    UpgradeStep,
    put_upgrade,
    upgrade_id,
)
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.testing.job_directories import (
    NOW,
    QUERY_ID,
    JobDirectoryBuilder,
    a_final,
)
from tests.dying import dies_at
from tests.extensions.delta.delta_support import Frame
from tests.extensions.maintenance.maintenance_support import WritingJob, maintain, reader_at
from tests.unit.support import counted

pytestmark = pytest.mark.slow


@pytest.fixture
def job(tmp_path):
    """Return a job whose records of its first epoch are folded: nothing goes behind it."""
    job = WritingJob(tmp_path / "job", tmp_path / "table")
    job.run("r0", [(0, "a")], replayable=False)
    records = job.bench.records
    found, record = records.find(), records.published(0)
    assert record is not None
    records.put_folded(HistoryRecord().with_epochs([record]))
    records.forget(type(found)(published=(0,)))
    job.run("r1", [(1, "b")], [(2, "c")], replayable=False)
    return job


def holders_of(job, epoch, **how):
    queries = {each.query_id: each for each in collect([str(job.root)], **how).queries}
    return why_revertible(Published(QUERY_ID, epoch), queries)


def save(job, url):
    bench = job.bench
    take_savepoint(
        job_source(str(job.root), bench.clock), str(url), aligned_timeout_s=0, clock=bench.clock
    )


def test_nothing_is_held_where_nothing_goes_back(job):
    """Neither run began with a savepoint, and the first one's records are folded."""
    assert [[], [], []] == [holders_of(job, epoch) for epoch in range(3)]


def test_an_epoch_that_was_published_since_is_held(job):
    """Its facts were not read."""
    (why,) = holders_of(job, 3)
    assert "has published it just now" in why


def test_a_replayable_run_holds_its_epochs_and_later_ones(job):
    """Those before it are free."""
    job.run("r2", [(3, "d")])
    job.run("r3", [(4, "e")], replayable=False)

    held = [f"run r2 of {job.root}, which can be replayed"]
    assert [[], held, held] == [holders_of(job, epoch) for epoch in (2, 3, 4)]


def test_a_savepoint_holds_the_epochs_after_it(job, tmp_path):
    """In the job directory, and elsewhere if its folder is named."""
    save(job, job.root / "savepoints" / "mine")
    save(job, tmp_path / "backup" / "other")
    job.run("r2", [(3, "d")], replayable=False)

    assert [] == holders_of(job, 2)
    assert [f"savepoint {job.root}/savepoints/mine"] == holders_of(job, 3)
    found = holders_of(job, 3, savepoints=[str(tmp_path / "backup")])
    assert f"savepoint {tmp_path}/backup/other" in found


def test_a_savepoint_with_which_a_run_has_ended_is_known(job, tmp_path):
    """Its final checkpoint has the address."""
    save(job, tmp_path / "backup" / "last")
    final = a_final("r1")
    object.__setattr__(final, "savepoint", str(tmp_path / "backup" / "last"))
    job.directory.run("r1").put_final(final)
    job.run("r2", [(3, "d")], replayable=False)

    assert [f"savepoint {tmp_path}/backup/last"] == holders_of(job, 3)


def test_an_unpublished_epoch_holds_itself_and_later_ones(job):
    """Its driver has died between Spark's commit and the table's."""
    committer = job.bench.recovered("r2")
    job.bench.spark.plan(3)
    committer.pre_commit(Frame([(3, "d")]), 3, counted(1))
    job.bench.spark.commit(3)
    job.bench.close()

    assert [] == holders_of(job, 2)
    assert [f"a run of {job.root}, which has not published epoch 3"] == [
        each.replace("run r2", "a run") for each in holders_of(job, 3)
    ]


def test_an_open_restore_holds_everything(job):
    """Also epochs whose records are folded: what it does is not known."""
    job.run("r2", [(3, "d")])
    with dies_at("restore.begun"):
        job.rewind("r2")

    assert any("which has not ended" in each for each in holders_of(job, 1))
    assert 0 == maintain(job.table, job.root).compacted
    job.rewind("r2")
    assert [] == holders_of(job, 1)


@pytest.mark.parametrize(
    ("step", "is_held"), [(UpgradeStep.TRIAL, True), (UpgradeStep.ACCEPTED, False)]
)
def test_an_upgrade_on_trial_holds_everything(job, tmp_path, step, is_held):
    """One that was accepted holds nothing: the old version is never set back."""
    job.run("r2", [(3, "d")])
    new = JobDirectoryBuilder(tmp_path / "new").begin()
    record = UpgradeRecord(
        by="d1",
        id=upgrade_id(new.url),
        to=new.url,
        entry="jobs.py:new",
        old_run_id="r2",
        began=NOW,
        step=step,
    )
    put_upgrade(job.directory, record)

    assert is_held is any("upgrade" in each for each in holders_of(job, 1))
    assert is_held is bool(holders_of(job, 3))


def test_a_query_that_was_reset_holds_nothing(job):
    """Its output stays permanently."""
    job.run("r2", [(3, "d")])
    job.bench.records.put_reverted(4, NOW, stays=True)

    assert [] == holders_of(job, 3)


def test_the_version_of_the_newest_final_checkpoint_is_named(job):
    """And no older one, unless its run can be replayed."""
    for run, version in (("r0", 1), ("r1", 3)):
        sink = PublishedSink(name=f"delta:{job.table}", epoch=0, rows=1, version=version)
        final = a_final(run)
        query = FinalQuery(query_id=QUERY_ID, batch_id=0, finished=True, sinks=(sink,))
        object.__setattr__(final, "queries", {"q": query})
        job.directory.run(run).put_final(final)

    (found,) = collect([str(job.root)]).versions
    holder = f"the final checkpoint of run r1 of {job.root}"
    assert NamedVersion(f"delta:{job.table}", 3, holder) == found


def test_a_reader_goes_back_to_its_savepoint(job, tmp_path):
    """Its own position is later."""
    reader = reader_at(tmp_path / "reader", job.table, 1)
    builder = JobDirectoryBuilder(reader)
    clock = job.bench.clock
    take_savepoint(
        job_source(reader, clock), f"{reader}/savepoints/s", aligned_timeout_s=0, clock=clock
    )
    table_id = str(DeltaTable(str(job.table)).metadata().id)
    for batch in range(1, 5):
        offset = f'{{"id":"{table_id}","version":{batch + 1},"index":0}}'
        builder.spark.plan(batch, sources=[offset]).commit(batch)

    found = collect([], [reader]).positions

    assert {1, 3, 4, 5} == {position.offset["version"] for position in found}
    assert [f"savepoint {reader}/savepoints/s"] == [
        position.holder for position in found if position.offset["version"] == 1
    ]
