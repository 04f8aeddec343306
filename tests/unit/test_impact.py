"""``spark-stream impact``: what a rewind would remove, without removing it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors import EXIT_OK
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.impact import impact_of
from airflow_provider.runtime.savepoints.retention import pinned_savepoint
from airflow_provider.runtime.savepoints.take import take_savepoint
from tests.dying import dies_at
from tests.unit.hourly_job import HourlyJob, hours

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow


@pytest.fixture
def job(tmp_path: Path) -> Iterator[HourlyJob]:
    """Yield a job that has written five hours, the last two with three rows each."""
    made = HourlyJob(tmp_path / "job")
    for hour in range(5):
        made.run(hour, rows=3 if hour >= 3 else 1)
    yield made
    made.bench.close()


def asked(job: HourlyJob, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert EXIT_OK == main(["impact", job.directory.url, *arguments, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def save(job: HourlyJob, name: str) -> str:
    url = f"{job.directory.url}/savepoints/{name}"
    source = job_source(job.directory.url, job.bench.clock)
    return take_savepoint(source, url, origin="manual", clock=job.bench.clock).url


def test_it_says_what_goes_and_changes_nothing(
    job: HourlyJob, capsys: pytest.CaptureFixture[str]
) -> None:
    """The later runs, epochs, rows, sinks and hours; then a rewind removes just that."""
    root = Path(job.directory.url)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    found = asked(job, capsys, "r3")
    after = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    published = dict(job.sink.published)
    job.rewind(4)
    job.rewind(3)
    removed = {epoch: rows for epoch, rows in published.items() if epoch not in job.sink.published}

    assert before == after
    expected = {"later_runs": ["r4"], "epochs": 2, "rows": 6, "sinks": ["fake"], "refused": None}
    assert expected == {name: found[name] for name in expected}
    assert (2, 6) == (len(removed), sum(map(len, removed.values())))
    assert found["goes_back_to"].endswith("/savepoints/rewind-r3")
    assert ["1970-01-01T04:00:00.000Z", "1970-01-01T05:00:00.000Z"] == [
        each["boundary"] for each in found["periods"]
    ]
    assert ["r4", "r3"] == [run["run_id"] for run in found["runs"]]
    assert hours(2) == impact_of(job.directory, "r2").event_times


def test_savepoints_that_have_read_it_are_named(
    job: HourlyJob, capsys: pytest.CaptureFixture[str]
) -> None:
    """One from before the run still fits; a reader's job pins the other."""
    job.rewind(4)
    save(job, "before")
    job.run(4, "again")
    late = save(job, "late")
    with pinned_savepoint(late, job.bench.clock, "/data/other"):
        found = asked(job, capsys, "again")
    assert EXIT_OK == main(["impact", job.directory.url, "again"])
    lines = capsys.readouterr().out

    assert [("late", ["/data/other"])] == [
        (each["name"], each["read_by"]) for each in found["savepoints"]
    ]
    assert "savepoint late: no longer fits the output" in lines


def test_what_refuses_a_rewind_is_said(job: HourlyJob, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that began without a savepoint, an unfinished rewind, a run that is rewound already."""
    with dies_at("restore.begun"):
        job.rewind(4)
    unfinished = asked(job, capsys, "r3")["refused"]
    job.rewind(4, token=100)
    rewound = asked(job, capsys, "r4")
    for folder in Path(job.directory.url, "savepoints").glob("rewind-r3*/savepoint.json"):
        folder.unlink()
    missing = asked(job, capsys, "r3")["refused"]

    assert "did not end" in unfinished
    assert ("run 'r4' is rewound already", 0, []) == tuple(
        rewound[name] for name in ("refused", "rows", "later_runs")
    )
    assert "cannot be rewound" in missing


def test_an_unknown_run_is_refused(job: HourlyJob, capsys: pytest.CaptureFixture[str]) -> None:
    """With the name that was given."""
    assert EXIT_OK != main(["impact", job.directory.url, "r9"])
    assert "no run 'r9'" in capsys.readouterr().err


def test_periods_have_the_length_that_was_asked_for(
    job: HourlyJob, capsys: pytest.CaptureFixture[str]
) -> None:
    """A day for a job whose consumers read days; a length of nothing is refused."""
    assert 1 == len(asked(job, capsys, "r0", "--every", "1 day")["periods"])
    assert EXIT_OK != main(["impact", job.directory.url, "r0", "--every", "0 s"])
