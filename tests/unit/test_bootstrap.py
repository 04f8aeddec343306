"""Bootstraps and rewrites that are refused, or done, without Spark; and the seam, which is pure."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider.runtime.bootstrap import bootstrap_job, check_seam, plan_seam
from airflow_provider.runtime.checkpoint.topology import Topology
from airflow_provider.runtime.cli import main
from airflow_provider.runtime.control.bootstrap_request import (
    BootstrapSpec,
    check_has_rows,
    check_same,
)
from airflow_provider.runtime.errors import (
    EXIT_FATAL,
    EXIT_OK,
    EXIT_USAGE,
    CheckpointError,
    ConfigError,
)
from airflow_provider.runtime.jobdir.identity import BootstrapPurpose, begin_identity
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.queries.context import JobContext
from airflow_provider.runtime.savepoints.catalog import open_savepoint, verify_savepoint
from airflow_provider.runtime.storage.open import open_storage
from airflow_provider.runtime.testing.job_directories import CheckpointBuilder
from tests.declaring import declared
from tests.unit.support import EpochBench, FakeClock, FakeSink


@pytest.fixture
def job(tmp_path):
    """Return the folder of a job with two published batches."""
    EpochBench(tmp_path / "job", FakeSink()).begun().published(2)
    return tmp_path / "job"


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# --- refused before Spark starts ----------------------------------------------------------------


def test_a_job_that_has_begun_is_not_touched(job, capsys):
    """A bootstrap makes a first state; the command says what changes the state that there is."""
    before = content_of(job)

    code = main.main(["state", "bootstrap", str(job), "--entry", "job.py:f"])

    assert EXIT_USAGE == code
    assert "has begun already (query 'q' has a checkpoint)" in capsys.readouterr().err
    assert before == content_of(job)


def test_what_was_begun_from_another_history_is_not_mixed_with_this_one(tmp_path):
    """Neither a bootstrap that did not end, nor a savepoint that was made of something else."""
    ask = BootstrapSpec(job_dir=str(tmp_path / "new"), entry="job.py:f", params={"day": "1"})
    scratch = open_storage(f"{ask.job_dir}/bootstraps/bootstrap")
    begin_identity(scratch, FakeClock(), bootstrap=BootstrapPurpose(ask.target, "other"))

    with pytest.raises(ConfigError, match="began at .* for .* with other parameters"):
        bootstrap_job(ask)
    job = dataclasses.replace(ask, to=f"{ask.job_dir}/savepoints/job")
    begin_identity(open_storage(f"{ask.job_dir}/bootstraps/job"), FakeClock())
    with pytest.raises(ConfigError, match="another job lies there; give this one another --to$"):
        bootstrap_job(job)
    with pytest.raises(ConfigError, match="output 'both': use one of 'discard', 'keep'"):
        BootstrapSpec(job_dir="j", entry="e", output="both")


def test_a_savepoint_in_the_way(job, tmp_path):
    """One that this ask has not made is somebody else's."""
    saved = str(tmp_path / "saved")
    assert EXIT_OK == main.main(["savepoint", "take", str(job), "--to", saved])

    with pytest.raises(ConfigError, match="made of something else; choose another one"):
        bootstrap_job(BootstrapSpec(job_dir=str(tmp_path / "new"), entry="job.py:f", to=saved))


# --- history without rows -----------------------------------------------------------------------


@pytest.fixture
def scratch(tmp_path):
    """Return where history is read: query q has a batch, query p has none."""
    asked = BootstrapSpec(job_dir=str(tmp_path / "new"), entry="e", params={"day": "1"})
    location = open_storage(f"{tmp_path}/new/bootstraps/bootstrap")
    begin_identity(location, FakeClock(), bootstrap=asked.purpose)
    made = EpochBench(tmp_path / "new/bootstraps/bootstrap", FakeSink()).begun().published(1)
    CheckpointBuilder(tmp_path / "new/bootstraps/bootstrap/queries/p/checkpoint").begin()
    return JobDirectory(made.storage)


def test_history_without_a_row_leaves_nothing(scratch, tmp_path):
    """A command with other parameters is not told that another bootstrap began."""
    check_has_rows(scratch, ["q"], output="discard")

    with pytest.raises(ConfigError, match="query 'p': history has no row .*check the parameters"):
        check_has_rows(scratch, ["q", "p"], output="discard")
    assert {} == content_of(tmp_path / "new")
    check_same(scratch, BootstrapSpec(job_dir=str(tmp_path / "new"), entry="e"))


def test_output_that_was_kept_is_not_forgotten(scratch, tmp_path):
    """
    What has been written into the sinks is known in that folder alone: it stays, and is named.
    """
    before = content_of(tmp_path / "new")

    with pytest.raises(CheckpointError, match="The output of q is written.* remove ") as raised:
        check_has_rows(scratch, ["q", "p"], output="keep")
    assert EXIT_FATAL == raised.value.exit_code
    assert before == content_of(tmp_path / "new")
    with pytest.raises(ConfigError, match="query 'p': history has no row"):
        check_has_rows(scratch, ["p"], output="keep")
    assert {} == content_of(tmp_path / "new")


# --- the seam -----------------------------------------------------------------------------------


def source(name="events", path="/past", **changed):
    given = {"schema": None, "options": {}, "bounded": False, "watermark": None, **changed}
    return declared(name, format="csv", path=path, **given)


def query(*sources, marked=(), operators=()):
    names = tuple(each.name for each in sources)
    return SimpleNamespace(
        name="q", sources=sources, marked=marked, topology=Topology(names, operators)
    )


def test_each_source_is_reset_kept_or_internal():
    """Markers are reset with the source that they are of; what another query writes stays read."""
    table = source("table", "/table")
    chained = source("chained", "/out", is_internal=True)
    seam = plan_seam([query(source(), table, chained)], ["table"], output="keep")

    names = ["events", "events:marker", "table", "table:marker", "chained", None]
    assert [0, 1, 3, 5] == seam.locations_to_reset(names)
    assert ["events"] == [location.name for location in seam.history["q"]]


def test_a_source_that_is_read_twice_goes_with_all_others():
    """Spark may keep one folder for both locations, so those behind it would be taken for others."""
    twice = [query(source(), source(), source("table", "/table"))]

    assert [0, 1, 2] == plan_seam(twice, [], output="discard").locations_to_reset(["events"] * 3)
    with pytest.raises(ConfigError, match="reads a source at several locations"):
        plan_seam(twice, ["table"], output="discard")


@pytest.mark.parametrize(
    ("live", "kept", "said"),
    [
        (query(source()), (), "would read again what history reads"),
        (query(source(path="/live")), ("events",), "a position has no meaning in another location"),
        (query(source("rows", "/live")), (), "expected 1 source .events., found 1 source .rows."),
        (query(source(path="/live"), marked=("events",)), (), "markers of no source in history"),
        (SimpleNamespace(name="other"), (), "has the queries q, and with those of the live job"),
    ],
)
def test_history_and_a_live_job_that_do_not_fit(live, kept, said):
    """The message names the source, and the fix."""
    history = [query(source())]

    with pytest.raises(ConfigError, match=said):
        check_seam(history, [live], plan_seam(history, kept, output="discard"))


def test_history_and_a_live_job_that_fit():
    """Another location, or the same one further on."""
    history = [query(source())]
    for live, kept in ((query(source(path="/live")), ()), (query(source()), ("events",))):
        check_seam(history, [live], plan_seam(history, kept, output="discard"))


def test_sinks_are_not_even_looked_at_when_output_is_discarded(monkeypatch):
    """They may need what the history's parameters do not have."""
    monkeypatch.setattr("airflow_provider.runtime.queries.context.check_query", lambda *_: None)
    monkeypatch.setattr(
        "airflow_provider.runtime.queries.context.sources_of", lambda *_: (source(),)
    )
    monkeypatch.setattr("airflow_provider.runtime.queries.context.operations", lambda *_: ())
    no_spark: Any = None
    rows: Any = SimpleNamespace(isStreaming=True)
    ctx = JobContext(no_spark, params={}, run_id="r", mode="STREAMING", discards_output=True)
    sink = FakeSink("real")

    ctx.write("q", rows, to=sink)

    assert ("discarded:real",) == ctx.queries[0].sink_names
    assert [] == sink.calls


# --- a rewrite without Spark --------------------------------------------------------------------


@pytest.mark.slow
def test_a_savepoint_is_changed_and_stays_as_it_is(job, tmp_path, capsys):
    """
    The plan first, then the new one; nothing else is left, and the old one has not a byte less.
    """
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    main.main(["savepoint", "take", str(job), "--to", old])
    before = content_of(tmp_path / "old")
    asked = ["state", "rewrite", old, "--to", new, "--rename-query=q=r", "--reset-source=0"]
    capsys.readouterr()

    assert EXIT_OK == main.main([*asked, "--dry-run"])
    assert "called 'r' from now on" in capsys.readouterr().out
    assert not Path(new).exists()
    assert EXIT_OK == main.main([*asked, "--json"])

    told = json.loads(capsys.readouterr().out)
    steps = ["called 'r' from now on", "source 0 begins from its beginning"]
    assert {"r": {"from": "q", "steps": steps}} == told["queries"]
    made = open_savepoint(new)
    assert ("rewrite", ["r"]) == (made.record.origin, list(made.record.queries))
    assert [None] == made.record.queries["r"].sources
    assert [] == verify_savepoint(made)
    assert before == content_of(tmp_path / "old")
    assert ["job", "new", "old"] == sorted(path.name for path in tmp_path.iterdir())
    assert EXIT_USAGE == main.main(asked)
    assert "there is a savepoint of this name" in capsys.readouterr().err
    assert EXIT_USAGE == main.main(
        ["state", "rewrite", old, "--to", f"{old}/n", "--reset-source=0"]
    )
    assert "lies in the savepoint" in capsys.readouterr().err


@pytest.mark.slow
def test_a_batch_that_only_changed_state_is_not_what_the_job_has_written(job, tmp_path, capsys):
    """
    Restored into the job's own directory, such a savepoint goes back before the batch of the job
    that has the same number, and what that has written would be written again.
    """
    saved = tmp_path / "saved"
    main.main(["savepoint", "take", str(job), "--to", str(saved)])
    manifest = saved / "savepoint.json"
    record = json.loads(manifest.read_text())
    assert EXIT_OK == main.main(["savepoint", "restore", str(saved), str(job)])

    record["queries"]["q"]["administrative"] = 1
    manifest.write_text(json.dumps({**record, "taken": "2026-01-02T00:00:00.000Z"}))

    assert EXIT_USAGE == main.main(["savepoint", "restore", str(saved), str(job)])
    assert "has written epochs 1 to 1 after this savepoint" in capsys.readouterr().err
