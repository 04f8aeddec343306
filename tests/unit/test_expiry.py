"""Expiry: what is removed of old runs and drivers, a little at each start, and what never is."""

from __future__ import annotations

import dataclasses
import errno
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider.plugins.documents import KINDS
from airflow_provider.runtime.driver.lifecycle.events import AtEnd
from airflow_provider.runtime.driver.records import begin_attempt
from airflow_provider.runtime.jobdir import expiry
from airflow_provider.runtime.jobdir.batch_history import BatchHistory
from airflow_provider.runtime.jobdir.expiry import RetiredRecord, retire_old
from airflow_provider.runtime.jobdir.lease_records import has_ended, newest_token, read_lease
from airflow_provider.runtime.jobdir.requests import pending_requests, put_cancel, reply
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.jobdir.runs import recent_runs
from airflow_provider.runtime.savepoints.checkpoint_claim import TakeOverRecord
from airflow_provider.runtime.savepoints.record import SavepointClaimRecord, SavepointRecord
from airflow_provider.runtime.testing.job_directories import (
    NOW,
    JobDirectoryBuilder,
    a_progress,
    an_attempt,
    rewind_run,
)
from tests.present import present
from tests.unit.counting import CountingStorage
from tests.unit.ended import Ended

OF_SAVEPOINTS = {SavepointRecord, SavepointClaimRecord, TakeOverRecord}
KEEP_LEASES = 30  # as if it were so many: two hundred take longer to put together


@pytest.fixture(autouse=True)
def keeping(monkeypatch):
    """Let fewer leases keep all than two hundred."""
    assert 200 == expiry.KEEP_LEASES
    monkeypatch.setattr(expiry, "KEEP_LEASES", KEEP_LEASES)


@pytest.fixture
def ended(tmp_path) -> Ended:
    return Ended(JobDirectoryBuilder(tmp_path / "job"))


def files(ended: Ended, under: str = "") -> list[str]:
    root = ended.job.root
    return sorted(str(p.relative_to(root)) for p in (root / under).rglob("*") if p.is_file())


def retire(ended: Ended, *, until: int | None = None) -> None:
    """Retire as starts do, one after the other, until so many leases are retired."""
    until = ended.token - KEEP_LEASES if until is None else until
    while (
        RetiredRecord.read(ended.counted, "retired.json") or RetiredRecord(token=0)
    ).token < until:
        retire_old(ended.directory, ended.token)


def test_of_an_old_run_stays_what_was_asked_and_how_it_ended(ended, clock):
    """Airflow may ask for the run again; logs, processes and progress of long ago are of no use."""
    ended.run("old")
    ended.submit("old", "d1")
    ended.submit("old", "never-came-up")
    ended.write("runs/old/progress.json", a_progress())
    ended.write("runs/old/history/q.json", BatchHistory(query="q", updated=NOW))
    request = put_cancel(ended.counted, "d1", clock)
    reply(ended.counted, request, ok=True, message="", clock=clock)
    put_cancel(ended.counted, "never-came-up", clock)
    ended.runs(KEEP_LEASES)

    retire(ended)

    assert ["attempts/1.json", "final.json", "run.json"] == [
        name.removeprefix("runs/old/") for name in files(ended, "runs/old")
    ]
    assert [] == [*files(ended, "requests"), *files(ended, "replies")]
    assert "heartbeats/1.json" not in files(ended)
    assert "heartbeats/2.json" in files(ended), "the newest leases keep all"


def test_a_removal_that_a_full_or_silent_storage_cuts_short_goes_on_at_the_next_start(
    ended, monkeypatch
):
    """
    The progress record goes last: a run without it is taken for done, and is not looked at again.
    """
    ended.run("old")
    ended.write("runs/old/progress.json", a_progress())
    ended.write("runs/old/history/q.json", BatchHistory(query="q", updated=NOW))
    ended.runs(KEEP_LEASES)
    delete = CountingStorage.delete

    def refuse_history(storage: CountingStorage, path: str) -> None:
        if path.startswith("history/"):
            raise OSError(errno.EIO, "no answer", path)
        delete(storage, path)

    monkeypatch.setattr(CountingStorage, "delete", refuse_history)
    retire_old(ended.directory, ended.token)
    assert "runs/old/history/q.json" in files(ended)

    monkeypatch.setattr(CountingStorage, "delete", delete)
    retire(ended)
    assert ["attempts/1.json", "final.json", "run.json"] == [
        name.removeprefix("runs/old/") for name in files(ended, "runs/old")
    ]


@pytest.mark.slow
def test_leases_are_never_removed(ended):
    """Where a lease is gone somebody who was paused could take it again, and not be fenced."""
    ended.runs(KEEP_LEASES + 45)
    retire(ended)

    assert [f"leases/{n}.json" for n in range(1, ended.token + 1)] == sorted(
        files(ended, "leases"), key=lambda name: int(name[7:-5])
    )
    assert KEEP_LEASES == len(files(ended, "heartbeats"))
    assert ended.token == newest_token(ended.counted)


def test_a_run_that_can_be_resumed_keeps_its_last_driver(ended):
    """Whatever its age; drivers before its last one are not asked for any more."""
    for number in (1, 2, 3):
        token = ended.lease("left")
        ended.submit("left", f"d{token}", number)
        ended.write(f"runs/left/attempts/{number}.json", an_attempt(number, token=token))
    ended.runs(KEEP_LEASES)
    retire(ended)

    assert {"3.json", "d3.json", "d3.process.json", "d3.end.json", "d3.log"} == {
        name.rpartition("/")[2] for name in files(ended, "runs/left")
    }


def test_numbers_go_on_after_the_last_one(ended, clock):
    """The next attempt and the next submission of such a run are not taken for earlier ones."""
    ended.submit("left", "d1", 7)
    ended.write("runs/left/attempts/9.json", an_attempt(9))
    run = ended.directory.run("left")

    assert 7 == run.submission_count()
    context = SimpleNamespace(applicationId="app-1", uiWebUrl=None)
    plan = SimpleNamespace(mode="STREAMING", until="end", at_end=AtEnd.DRAIN)
    spark = SimpleNamespace(sparkContext=context)
    job: Any = SimpleNamespace(spark=spark, queries=(), plan=plan)
    lease = present(read_lease(ended.counted, ended.lease("left")))
    begun = begin_attempt(run, RunSpec(job_dir="/j", entry="job.py:f"), lease, job, clock.now())
    assert (10, lease.driver_id, "app-1") == (begun.attempt, begun.driver_id, begun.application_id)


def test_a_run_that_goes_on_is_not_old_for_having_begun_early(ended):
    """Its last driver is what counts: until that one retires the run keeps its progress."""
    ended.run("long")
    ended.runs(KEEP_LEASES)
    ended.write("runs/long/progress.json", a_progress())
    ended.write("runs/long/history/q.json", BatchHistory(query="q", updated=NOW))
    token = ended.lease("long")
    ended.submit("long", f"d{token}")
    ended.write("runs/long/attempts/2.json", an_attempt(2, token=token))
    ended.lease("other")
    retire(ended)

    kept = files(ended, "runs/long")
    assert "runs/long/progress.json" in kept
    assert "runs/long/history/q.json" in kept
    assert f"runs/long/submissions/d{token}.json" in kept
    assert "runs/long/attempts/1.json" not in kept


def test_a_run_that_was_undone_is_over(ended):
    """It has no final checkpoint and cannot be resumed; that it no longer counts stays said."""
    ended.run("undone", ended=False)
    ended.submit("undone", "d1")
    rewind_run(ended.directory, "undone")
    ended.runs(KEEP_LEASES)
    retire(ended)

    assert ["attempts/1.json", "rewound.json", "run.json"] == [
        name.removeprefix("runs/undone/") for name in files(ended, "runs/undone")
    ]


def test_a_driver_that_went_on_under_later_leases_is_retired_with_its_last(ended, clock):
    """
    A driver takes a lease more each time when it starts a query again, and at the end of a run.
    """
    ended.run("long")
    ended.submit("long", "d1")
    put_cancel(ended.counted, "d1", clock)
    for _ in range(KEEP_LEASES + 5):
        ended.lease("long", first=1)
    retire(ended)

    assert 1 == len(pending_requests(ended.counted, "d1"))
    assert "runs/long/logs/d1.log" in files(ended)
    assert KEEP_LEASES == len(files(ended, "heartbeats"))
    assert ["long"] == [record.run_id for record in recent_runs(ended.directory)]


@pytest.mark.slow
def test_a_start_removes_a_bounded_part(tmp_path):
    """The first one after years as much as any other, until nothing old is left."""
    costs = []
    for count in (25, 90):
        ended = Ended(JobDirectoryBuilder(tmp_path / str(count))).runs(KEEP_LEASES + count)
        ended.counted.taken()
        retire_old(ended.directory, ended.token)
        costs.append(ended.counted.taken())
        assert 20 == present(RetiredRecord.read(ended.counted, "retired.json")).token

    assert costs[0] == costs[1]
    assert 40 >= costs[0]["delete"]


def test_a_young_job_costs_nothing(ended):
    """Before there are so many leases nothing is looked at."""
    ended.runs(3)
    ended.counted.taken()
    retire_old(ended.directory, KEEP_LEASES)

    assert {} == ended.counted.taken()


def test_what_nobody_here_has_made_stays(ended, clock):
    """Files of other names, of other contents, and folders of the right names."""
    ended.run("old")
    ended.submit("old", "d1")
    root = ended.job.root
    strange = {
        "runs/old/submissions/notes.txt": "mine",
        "runs/old/logs/notes.txt": "mine",
        "runs/old/attempts/notes.txt": "mine",
        "runs/old/logs/d1.log/kept.txt": "a folder",
        "requests/d1/notes.txt": "mine",
        "replies/notes.json": "mine",
        "runs/other/logs/d1.log": "of another run",
    }
    (root / "runs/old/logs/d1.log").unlink()
    for path, text in strange.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    request = put_cancel(ended.counted, "d1", clock)
    mine = "requests/d1/1.json"
    reply(ended.counted, request, ok=True, message="", clock=clock)
    ended.counted.put("requests/d1/copy.json", ended.counted.read(mine))
    ended.runs(KEEP_LEASES)
    retire(ended)

    kept = files(ended)
    assert {*strange, "requests/d1/copy.json"} <= set(kept)
    assert not {mine, f"replies/{request}.json"} & set(kept)


def test_what_is_damaged_stays_and_holds_nothing_up(ended, caplog):
    """A lease that cannot be read is said once, and those after it are retired."""
    ended.runs(KEEP_LEASES + 3)
    (ended.job.root / "leases" / "2.json").write_text("{")
    retire_old(ended.directory, ended.token)

    assert "records of lease 2 are kept" in caplog.text
    assert "heartbeats/2.json" in files(ended)
    assert "heartbeats/3.json" not in files(ended)
    caplog.clear()
    retire_old(ended.directory, ended.token)
    assert "" == caplog.text


@pytest.mark.parametrize("text", ["{", '{"version": 1, "token": -1}', '{"version": 9, "token": 1}'])
def test_a_damaged_note_of_how_far_it_has_come_costs_no_start(ended, caplog, text):
    """It is said at each start, with its location, and nothing is removed."""
    ended.runs(KEEP_LEASES + 2)
    (ended.job.root / "retired.json").write_text(text)
    retire_old(ended.directory, ended.token)

    assert f"{ended.job.root}/retired.json" in caplog.text
    assert "heartbeats/1.json" in files(ended)


def test_a_storage_that_is_away_costs_no_start(ended, monkeypatch, caplog):
    """What is old waits for the next start, which goes on where this one was cut short."""
    ended.runs(KEEP_LEASES + 5)
    with monkeypatch.context() as patch:

        def away(*_):
            raise OSError("not now")

        patch.setattr(type(ended.counted), "delete", away)
        retire_old(ended.directory, ended.token)
    assert "could not be removed: not now" in caplog.text
    assert not ended.counted.exists("retired.json")

    ended.counted.delete("heartbeats/1.json")
    retire(ended)
    assert KEEP_LEASES == len(files(ended, "heartbeats"))


def test_a_retired_driver_is_not_said_to_have_ended(ended):
    """
    Without its heartbeat only its process can tell; what it staged is kept rather than removed.
    """
    ended.runs(KEEP_LEASES + 1)
    assert has_ended(ended.counted, 1)
    retire(ended)

    assert not has_ended(ended.counted, 1)
    assert dataclasses.is_dataclass(RetiredRecord.read(ended.counted, "retired.json"))


@pytest.mark.parametrize("kind", sorted(KINDS, key=str), ids=lambda kind: kind.__name__)
def test_the_page_says_how_long_each_document_is_kept(kind):
    """A document of a job directory is named in the table, alone or by its folder."""
    page = (Path(__file__).parents[2] / "docs" / "storage.md").read_text(encoding="utf-8")
    table = page.partition("## What is kept, and for how long")[2].partition("\n## ")[0]
    rows = " ".join(line.split(" | ")[0] for line in table.splitlines() if line.startswith("|"))
    named = {
        name for code in re.findall(r"`([^`]+)`", rows) for name in re.findall(r"\w[\w.]*/?", code)
    }

    for location in kind.LOCATIONS:
        parts = re.sub(r"^(queries/<query>|runs/[^/]+)/", "", location).partition("/")
        assert kind in OF_SAVEPOINTS or "".join(parts[:2]) in named, location
