"""``spark-stream`` on job directories made by hand: what it prints, and its exit codes."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.host import identify
from airflow_provider.runtime.checkpoint.drain_step import MAX_WATERMARK_MS
from airflow_provider.runtime.cli import job_commands
from airflow_provider.runtime.cli.main import is_shown, main
from airflow_provider.runtime.cli.status_command import follow
from airflow_provider.runtime.errors import EXIT_FATAL, EXIT_OK, EXIT_RETRY, EXIT_USAGE
from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.failures.messages import AFTER_A_COMMAND
from airflow_provider.runtime.jobdir.batch_history import (
    TOTAL,
    BatchEntry,
    BatchHistory,
    add_batches,
    history_path,
)
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.jobdir.requests import pending_requests, reply
from airflow_provider.runtime.jobdir.run_records import FAILED
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import (
    NOW,
    QUERY_ID,
    JobDirectoryBuilder,
    a_final,
    a_progress,
    an_attempt,
    an_epoch,
    rewind_run,
)
from tests.pipes import stdout_of
from tests.present import present
from tests.screens import Screen
from tests.unit.support import FakeClock, HandStagedFiles, bench, take_lease


@pytest.fixture
def job(tmp_path) -> JobDirectoryBuilder:
    return JobDirectoryBuilder(tmp_path / "job")


@pytest.fixture(autouse=True)
def quiet_logging(monkeypatch):
    """Leave the process's logging as it is."""
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)


@pytest.fixture
def live_driver(job):
    """Take the lease as a driver whose heart beats quickly; answer a cancel and let go."""
    lease = take_lease(job.storage, FakeClock(), run_id="r1", heartbeat_s=0.01)
    ended = threading.Event()

    def drive() -> None:
        while not ended.wait(0.01):
            for request in pending_requests(job.storage, lease.record.driver_id):
                reply(job.storage, request.id, ok=True, message="cancelling", clock=FakeClock())
                lease.release()
                return

    driver = threading.Thread(target=drive)
    driver.start()
    yield lease
    ended.set()
    driver.join()
    lease.release()


def printed(capsys) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out)


def test_an_interrupted_command_ends_with_one_line(monkeypatch, capsys):
    """Before Spark runs there is nothing to cancel, and no stack of Python's is shown."""

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("airflow_provider.runtime.cli.run_command._check", interrupted)

    assert EXIT_RETRY == main(["check", "/job", "--entry", "a.py:f"])

    (line,) = capsys.readouterr().err.splitlines()
    assert line == "spark-stream: error: interrupted; the same command begins or goes on"


@pytest.mark.parametrize(
    ("file", "is_printed"),
    [
        ("/venv/site-packages/py4j/java_gateway.py", False),
        ("/spark/python/lib/py4j-0.10.9.9-src.zip/py4j/clientserver.py", False),
        ("/jobs/py4j_sums.py", True),
    ],
)
def test_the_errors_that_py4j_passes_on_are_not_printed(file, is_printed):
    """
    Each is the cause of an error that has a screen, and its stacks are in the file of details.
    """
    record = logging.LogRecord("root", logging.ERROR, file, 1, "Exception while…", None, None)

    assert is_printed == is_shown(record)


# --- usage --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["fly"],
        ["status"],
        ["status", "/job", "--colour"],
        ["cancel"],
        ["checkpoint"],
        ["checkpoint", "show"],
        ["checkpoint", "plan-drain"],
        ["checkpoint", "explode", "/c"],
        ["run"],
        ["run", "/job"],
        ["run", "/job", "--entry", "a.py:f", "--mode", "turbo"],
        ["run", "/job", "--entry", "a.py:f", "--state-partitions", "two"],
        ["savepoint", "fork", "/saved", "/job", "--state-partitions", "two"],
        ["run", "/job", "--entry", "a.py:f", "--until", "noon"],
        ["run", "/job", "--entry", "a.py:f", "--at-end", "explode"],
        ["run", "/job", "--entry", "a.py:f", "--interval", "2026-01-01"],
    ],
)
def test_a_mistyped_command_is_bad_usage(argv, capsys):
    """
    What the command line does not know ends with code 2 and one line on stderr, with the way to
    the help of the command that was given.
    """
    assert EXIT_USAGE == main(argv)

    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("spark-stream: error: ")
    assert re.search(r"[;?] spark-stream( [\w-]+)* --help shows what there is$", line)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["rnu"], "there is no 'rnu'; did you mean run? spark-stream --help"),
        (["staus", "/job"], "there is no 'staus'; did you mean status?"),
        (["run", "/job", "--entri", "a.py:f"], "there is no option --entri; did you mean --entry?"),
        (["run", "/job", "--entry", "a.py:f", "--mdoe=batch"], "--mdoe; did you mean --mode?"),
        (["run", "/job", "--entry", "a.py:f", "--par", "a=b"], "--par; did you mean --param?"),
        (["run", "/job", "/other", "--entry", "a.py:f"], "'/other' is one argument too many"),
        (["savepoint", "tkae", "/job"], "there is no 'tkae'; did you mean take?"),
        (["savepoint", "take", "/job", "--nmae", "a"], "--nmae; did you mean --name?"),
    ],
)
def test_what_is_mistyped_is_named_with_what_is_meant(argv, said, capsys):
    """
    Also an option that stands for another one by its beginning alone, and one without which
    something seems to be missing.
    """
    assert EXIT_USAGE == main(argv)

    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--param", "input"], "--param 'input': write --param NAME=VALUE"),
        (["--param", "=x"], "--param '=x': write --param NAME=VALUE"),
        (["--conf", "x"], "--conf 'x': write --conf NAME=VALUE"),
        (["--trigger", "soon", "--until", "stopped"], "--trigger: 'soon' is not a duration"),
        (["--trigger", "5 s", "--until", "end"], "leave it out"),
        (["--target-batch-time", "no"], "--target-batch-time: 'no' is not a duration"),
        (["--interval", "x", "y"], "--interval x y: write two times"),
        (["--run-id", "a/b"], "run id 'a/b': use letters"),
        (["--mode", "batch", "--until", "stopped"], "mode 'batch' reads everything and ends"),
        (["--entry", "nowhere.py:f"], "there is no file nowhere.py"),
        (["--entry", "nowhere"], "write FILE.py:FUNCTION"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_anything_is_written(
    job, capsys, options, complaint
):
    """A wrong value ends with code 2 and one line that names it, and no directory is made."""
    argv = ["run", str(job.root), "--entry", __file__ + ":nothing", *options]

    assert EXIT_USAGE == main(argv)
    output = capsys.readouterr()
    assert "" == output.out
    assert output.err.startswith("spark-stream: error: ")
    assert complaint in output.err
    assert 1 == len(output.err.splitlines())
    assert not job.root.exists()


@pytest.mark.parametrize(
    ("url", "complaint"),
    [("hdfs://host/job", "the scheme 'hdfs'"), ("memory://job", "this process's memory")],
)
def test_a_job_on_storage_that_does_not_serve_is_refused(capsys, url, complaint):
    """A job directory that two drivers could own, or that Spark cannot reach, ends with code 2."""
    assert EXIT_USAGE == main(["run", url, "--entry", __file__ + ":nothing"])
    assert complaint in capsys.readouterr().err


def test_with_json_an_error_is_json_too(job, capsys):
    """With ``--json`` a script finds the error's name, its code and its class on stdout."""
    argv = ["run", str(job.root), "--entry", "nowhere.py:f", "--json"]

    assert EXIT_USAGE == main(argv)
    document = printed(capsys)
    assert ("ConfigError", EXIT_USAGE, "NON_RECOVERABLE") == (
        document["error"],
        document["exit_code"],
        document["failure_class"],
    )
    assert "there is no file nowhere.py" in document["reason"]


# --- run, when there is nothing to run ----------------------------------------------------------


def test_a_finished_run_returns_at_once(job, capsys):
    """Asked again, a FINISHED run prints its final checkpoint, and Spark is never started."""
    job.begin().request_run().ran(0).finished()
    argv = ["run", str(job.root), "--entry", "gone.py:f", "--param", "input=/in"]

    assert EXIT_OK == main([*argv, "--run-id", "r1", "--json"])
    assert a_final().to_dict() == printed(capsys)
    assert EXIT_OK == main(argv)
    head, *rest = capsys.readouterr().out.splitlines()
    assert re.fullmatch(
        r"FINISHED: run r1, attempt 1, \d+\.\d s: 10 rows in, 3 out, unknown late", head
    )
    assert ["  q -> files:/out: 3 rows"] == rest


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--param", "input=/other"], "--param={'input': '/in'}"),
        (["--param", "input=/in", "--from-savepoint", "/nowhere"], "--from-savepoint='/nowhere'"),
        (["--param", "input=/in", "--at-end", "suspend"], "--at-end='suspend'"),
    ],
)
def test_a_finished_run_does_not_stand_for_another_one(job, capsys, options, told):
    """
    With or without its id: what was asked for is not what it has done, so nothing is called done.
    """
    job.begin().request_run().ran(0).finished()
    argv = ["run", str(job.root), "--entry", "gone.py:f", *options]

    for command in (argv, [*argv, "--run-id", "r1"]):
        assert EXIT_USAGE == main(command)
        output = capsys.readouterr()
        assert "" == output.out
        assert told in output.err
        assert 1 == len(output.err.splitlines())


def test_a_final_checkpoint_that_does_not_hold_is_fatal(job, capsys):
    """A FINISHED run whose checkpoint was tampered with ends with code 4."""
    job.begin().request_run().ran(0, published=False).finished()

    argv = ["run", str(job.root), "--entry", "a.py:f", "--run-id", "r1", "--param", "input=/in"]
    assert EXIT_FATAL == main(argv)
    assert "its record says otherwise" in capsys.readouterr().err


def test_a_drained_job_refuses_another_run(job, capsys):
    """Another run of a drained job ends with code 2 and the reason."""
    job.begin().request_run().ran(0).finished()
    argv = ["run", str(job.root), "--entry", __file__ + ":nothing", "--run-id", "r2"]

    assert EXIT_USAGE == main(argv)
    assert "the job was drained by run 'r1'" in capsys.readouterr().err


def test_a_directory_of_a_newer_format_is_refused(job, capsys):
    """A job directory that a newer version wrote ends with code 2 and is not touched."""
    job.storage.put("identity.json", b'{"version": 99}')

    assert EXIT_USAGE == main(["run", str(job.root), "--entry", __file__ + ":nothing"])
    assert "format version 99 is newer" in capsys.readouterr().err
    assert ["identity.json"] == job.storage.list("")


# --- status -------------------------------------------------------------------------------------


def test_status_of_no_job(job, capsys):
    """A location without a job ends with code 2 and is not made."""
    assert EXIT_USAGE == main(["status", str(job.root)])
    assert "no job there (no job.json); check the path" in capsys.readouterr().err
    assert not job.root.exists()


def test_status_of_a_new_job(job, capsys):
    """A job without runs is shown as such."""
    job.begin()

    assert EXIT_OK == main(["status", str(job.root)])
    assert f"job daily_delays in {job.root}: no lease\n" == capsys.readouterr().out


def test_status_of_a_finished_run(job, capsys):
    """A finished run is shown with its outcome, its attempts and its rows."""
    job.begin().request_run().ran(0).finished()

    assert EXIT_OK == main(["status", str(job.root)])
    assert (
        "  run r1: finished since 2026-01-01 00:00:00 UTC, 1 attempt(s), 10 rows read\n"
        in capsys.readouterr().out
    )


def test_status_believes_no_final_checkpoint_that_the_logs_contradict(job, capsys):
    """
    A run is not called finished when Spark's log or the records say otherwise; the reason is shown.
    """
    job.begin().request_run().ran(0, published=False).finished()

    assert EXIT_OK == main(["status", str(job.root)])
    shown = capsys.readouterr().out
    assert "  run r1: unverified since 2026-01-01 00:00:00 UTC, 1 attempt(s), 10 rows" in shown
    assert "published epoch 0 to files:/out, but its record says otherwise" in shown
    assert "finished" not in shown


def test_status_says_what_has_ended(job, capsys):
    """
    Each source and each stateful operator is shown with its finish state.
    """
    job.begin().request_run()
    marked = {
        "sources": [
            {"name": "a", "finish_state": "finished"},
            {"name": "b", "finish_state": "running"},
        ],
        "operators": [
            {"id": 0, "name": "pairs", "kind": "dedupe", "finish_state": "partly_finished"}
        ],
    }
    progress = a_progress(queries={"joined": marked, "empty": {}})
    progress.put(job.directory.run("r1").storage, "progress.json")

    assert EXIT_OK == main(["status", str(job.root)])
    shown = capsys.readouterr().out
    assert (
        "    joined: source a finished, source b unfinished, operator pairs partly finished"
        in shown
    )
    assert "empty:" not in shown


def test_status_says_what_was_lost_before_the_run_has_ended(job, capsys):
    """In the words of the end, from what the driver reports."""
    job.begin().request_run()
    a_progress(lost_rows=1200).put(job.directory.run("r1").storage, "progress.json")

    assert EXIT_OK == main(["status", str(job.root)])
    assert "    1,200 messages had expired before they were read" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["run.json", "final.json", "progress.json", "attempts/1.json"])
@pytest.mark.parametrize("options", [[], ["--all"], ["--run-id", "r2"]], ids=str)
def test_status_shows_a_damaged_run_beside_the_others(job, capsys, name, options):
    """
    One line says what is damaged, the other runs are shown as ever, and the exit code is that of damage.
    """
    job.begin().request_run("r1").ran(0).suspended("r1")
    job.request_run("r2", token=2).ran(1)
    job.directory.run("r2").storage.put(name, b'{"version": 1}')

    code = main(["status", str(job.root), *options])
    shown = capsys.readouterr()

    assert EXIT_FATAL == code
    assert f"{job.root}/runs/r2/{name}: not a" in shown.out + shown.err
    assert ("run r1: suspended" in shown.out) == (not options or options == ["--all"])
    assert "Traceback" not in shown.err


def test_strange_names_are_passed_over(job, capsys):
    """
    What people, editors and network filesystems leave in a job directory is none of its documents.
    """
    job.begin().request_run("r1").ran(0).suspended("r1")
    run = job.directory.run("r1")
    run.put_attempt(an_attempt(1, ended=NOW, outcome="SUSPENDED"))
    for folder in (
        "leases",
        "operations",
        "requests",
        "runs",
        "savepoints",
        "runs/r1/attempts",
        "queries",
    ):
        for name in (".DS_Store", "README", ".nfs0001", "1.json~", "\u00b2.json", "001.json"):
            job.directory.storage.put(f"{folder}/{name}", b"?")

    assert EXIT_OK == main(["status", str(job.root), "--all"])
    assert (
        "run r1: suspended since 2026-01-01 00:00:00 UTC, 1 attempt(s)" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EACCES, EXIT_FATAL),
        (errno.ENOTDIR, EXIT_FATAL),
        (errno.EISDIR, EXIT_FATAL),
        (errno.ELOOP, EXIT_FATAL),
        (errno.ENAMETOOLONG, EXIT_FATAL),
        (errno.ENOSPC, EXIT_RETRY),
        (errno.EIO, EXIT_RETRY),
        (errno.EMFILE, EXIT_RETRY),
    ],
    ids=errno.errorcode.get,
)
def test_what_the_system_refuses_is_one_line(job, capsys, monkeypatch, number, code):
    """The path, what the system says and the fix; no traceback, and the exit code that fits."""
    job.begin()

    def refuse(storage, path, **_):
        raise OSError(number, os.strerror(number), f"{storage.url}/{path}")

    monkeypatch.setattr(LocalStorage, "read_small", refuse)

    assert code == main(["status", str(job.root)])
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{job.root}/identity.json: {os.strerror(number)}" in line


def test_status_as_json(job, capsys):
    """A script gets every run with its final checkpoint or its last failure and progress."""
    job.begin().request_run("r1", started="2026-01-01T00:00:00.000Z").ran(0).suspended("r1")
    job.request_run("r2", started="2026-01-02T00:00:00.000Z")
    failure = {"failure_class": "ENVIRONMENT", "reason": "No space left on device"}
    run = job.directory.run("r2")
    run.put_attempt(an_attempt(1, ended=NOW, outcome=FAILED, failure=failure))
    a_progress().put(run.storage, "progress.json")

    assert EXIT_OK == main(["status", str(job.root), "--json"])
    document = printed(capsys)

    assert ("daily_delays", str(job.root), None) == (
        document["job"],
        document["job_dir"],
        document["lease"],
    )
    assert ["r1", "r2"] == [run["run_id"] for run in document["runs"]]
    assert ["suspended", "failed"] == [run["state"] for run in document["runs"]]
    assert [None, failure] == [run["failure"] for run in document["runs"]]
    assert document["runs"][0]["final"]["outcome"] == "SUSPENDED"
    assert 1234567 == document["runs"][1]["progress"]["rows_read"]


def test_status_of_one_run(job, capsys):
    """With a run id only that run is shown; an unknown one is refused with those there are."""
    job.begin().request_run("r1").request_run("r2")

    assert EXIT_OK == main(["status", str(job.root), "--run-id", "r2", "--json"])
    assert ["r2"] == [run["run_id"] for run in printed(capsys)["runs"]]

    assert EXIT_USAGE == main(["status", str(job.root), "--run-id", "r9"])
    assert "no run 'r9'; its newest runs: r2, r1" in capsys.readouterr().err


def test_status_tells_rewound_runs_from_others(job, capsys):
    """
    Also one whose final checkpoint says that it has finished: it does not count any more. What has
    rewound it is said, and when.
    """
    job.begin().request_run("r1").ran(0).finished()
    rewind_run(job.directory, "r1", by="restore 3")
    job.request_run("r2").directory.run("r2").put_attempt(an_attempt())

    assert EXIT_OK == main(["status", str(job.root), "--all", "--json"])
    first, second = printed(capsys)["runs"]
    assert ("rewound", NOW) == (first["state"], first["since"])
    assert first["next_step"].startswith("rewound by restore 3: the job was set to where it was")
    assert "killed" == second["state"]
    assert second["error"].startswith(
        "ENVIRONMENT: on worker-7: the driver was killed, or its machine was lost"
    )
    assert AFTER_A_COMMAND[FailureClass.ENVIRONMENT] == second["next_step"]


def test_status_shows_a_failure(job, capsys):
    """A failed attempt's class and reason, and what was tried before, are shown to people."""
    job.begin().request_run()
    failure = {"failure_class": "ENVIRONMENT", "reason": "No space left on device"}
    restarts = {
        "count": 3,
        "worked_s": 1.0,
        "state": {},
        "failure": {**failure, "query": "daily", "batch": 7},
    }
    attempt = an_attempt(2, ended=NOW, outcome=FAILED, failure=failure, restarts=restarts)
    job.directory.run("r1").put_attempt(attempt)

    assert EXIT_OK == main(["status", str(job.root)])
    shown = capsys.readouterr().out
    assert "run r1: failed since 2026-01-01 00:00:00 UTC, 2 attempt(s)" in shown
    assert "    last error: ENVIRONMENT: on worker-7: No space left on device" in shown
    assert (
        "3 restart(s) in the driver, the last one after ENVIRONMENT: query 'daily', batch 7: "
        "No space left on device" in shown
    )


@pytest.mark.slow
def test_status_of_a_live_driver(job, live_driver, capsys):
    """A driver whose heart beats is shown as live, and its run as running."""
    job.begin().request_run()

    assert EXIT_OK == main(["status", str(job.root)])
    shown = capsys.readouterr().out
    assert "lease 1 (live, run r1)" in shown
    assert "run r1: running" in shown


@pytest.mark.slow
def test_status_says_how_batches_are_paced(job, live_driver, capsys):
    """A line per sized query: what its last batch took, the target, the decision and the limits."""
    said = {
        "target_s": 10.0,
        "last_batch_s": 9.71,
        "decision": "unchanged",
        "reason": "within 25 % of the target",
        "sources": {"events": {"limit": 4213000, "unit": "bytes", "ceiling": None}},
    }
    progress = a_progress(queries={"out": {"batch_sizing": said}, "other": {"batch_sizing": None}})
    job.begin().request_run()
    progress.put(job.directory.run("r1").storage, "progress.json")

    assert EXIT_OK == main(["status", str(job.root)])
    assert (
        "    out: the last batch took 9.7 s, target 10 s, unchanged: within 25 % of the target; "
        "a batch reads 4,213,000 bytes of events\n"
    ) in capsys.readouterr().out


def with_batches(job: JobDirectoryBuilder, count: int = 25, run_id: str = "r1") -> None:
    """Leave a run with the history of a query, each batch of which took longer than the last."""
    batches = [
        BatchEntry(
            batch=number,
            at=NOW,
            attempt=1,
            rows=1000,
            duration_ms={TOTAL: 100 * (number + 1)},
            watermark=NOW,
            lag_s=7200.0,
            state_rows=42,
        )
        for number in range(count)
    ]
    run = job.directory.run(run_id)
    history = add_batches(BatchHistory(query="daily", updated=NOW), batches, updated=NOW)
    history.put(run.storage, history_path("daily"))
    a_progress().put(run.storage, "progress.json")


def test_status_shows_the_last_batches_of_an_open_run(job, capsys):
    """Their rate, how long they took, the watermark and how far it is behind, state and backlog."""
    job.begin().request_run()
    with_batches(job)

    assert EXIT_OK == main(["status", str(job.root)])
    assert (
        "    daily: 645 rows/s, batch 24 took 2.5 s ▃▃▃▄▄▄▄▅▅▅▅▆▆▆▇▇▇▇██, "
        "watermark 2026-01-01 00:00:00 UTC (2 h behind), 42 state rows, backlog 5 files\n"
    ) in capsys.readouterr().out


def test_status_as_json_has_the_last_batches_of_the_newest_run(job, capsys):
    """Twenty of each query, also when the run has ended; of older runs none."""
    job.begin().request_run("r1").request_run("r2", token=2)
    with_batches(job)
    with_batches(job, run_id="r2")

    assert EXIT_OK == main(["status", str(job.root), "--json"])
    old, new = printed(capsys)["runs"]
    assert None is old["batches"]
    assert [*range(5, 25)] == [batch["batch"] for batch in new["batches"]["daily"]]
    assert ([7200.0] * 20, None) == (
        [batch["lag_s"] for batch in new["batches"]["daily"]],
        new["batches"]["daily"][0]["decision"],
    )


def test_status_reads_no_batches_of_a_run_that_has_ended(job, capsys):
    """Its final checkpoint says what it has done."""
    job.begin().request_run().ran(0).finished()
    with_batches(job)

    assert EXIT_OK == main(["status", str(job.root)])
    assert "rows/s" not in capsys.readouterr().out


def test_a_damaged_history_damages_no_run(job, capsys):
    """The run is shown as it is, and one line says what is not."""
    job.begin().request_run()
    with_batches(job)
    job.directory.run("r1").storage.put(history_path("daily"), b"{}")

    assert EXIT_OK == main(["status", str(job.root)])
    assert "    daily: its history of batches is damaged" in capsys.readouterr().out
    assert EXIT_OK == main(["status", str(job.root), "--json"])
    assert {"daily": None} == printed(capsys)["runs"][0]["batches"]


@pytest.mark.parametrize("seconds", ["0", "-1", "nan"])
def test_a_watch_needs_time_between_two_looks(job, capsys, seconds):
    """Zero seconds are a mistake, which costs nothing."""
    job.begin().request_run()

    assert EXIT_USAGE == main(["status", str(job.root), f"--watch={seconds}"])
    assert "seconds between two looks" in capsys.readouterr().err


def test_a_watch_without_a_driver_ends_at_once(job, capsys):
    """It shows what there is, as status does."""
    job.begin().request_run()

    assert EXIT_OK == main(["status", str(job.root), "--watch"])
    assert "run r1: absent" in capsys.readouterr().out


class WatchedJob:
    """A run that somebody watches, with a driver that does something at each look.

    Args:
        job: its directory.
        steps: what happens between two looks, one after the other.
    """

    def __init__(self, job: JobDirectoryBuilder, *steps: Callable[[], object]) -> None:
        self.clock = FakeClock()
        self.clock.during_sleep = self._step
        self._steps = iter(steps)
        self._job = job.begin().request_run()
        self.lease = take_lease(job.storage, FakeClock(), run_id="r1")

    def _step(self) -> None:
        next(self._steps)()

    def watch(self) -> None:
        follow(self._job.directory, "r1", every_s=2.0, clock=self.clock)
        self.lease.release()


def interrupted() -> None:
    raise KeyboardInterrupt


def test_a_watch_prints_what_is_new_until_the_driver_ends(job, capsys):
    """Without a terminal, lines: of each progress that differs from the one before."""

    def job_ends() -> None:
        watched.lease.release()

    watched = WatchedJob(
        job,
        lambda: with_batches(job, 5),
        lambda: None,
        lambda: with_batches(job, 6),
        lambda: a_progress(phase="draining").put(job.directory.run("r1").storage, "progress.json"),
        job_ends,
    )
    watched.watch()

    assert [
        "2026-01-01 00:00:00 UTC reading, 1,234,567 rows read, 520,000 rows/s",
        "2026-01-01 00:00:00 UTC draining, 1,234,567 rows read, 520,000 rows/s",
    ] == [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]


def test_a_watch_ends_with_its_run(job, capsys):
    """As soon as the final checkpoint is there, whatever becomes of the driver."""
    watched = WatchedJob(job, lambda: with_batches(job, 5), lambda: job.ran(0).finished())
    watched.watch()

    assert "batch 4 took" in capsys.readouterr().out


def test_a_person_ends_a_watch(job):
    """With the key that interrupts; the job goes on, and the command has done what it was to do."""
    WatchedJob(job, interrupted).watch()


def test_a_watch_draws_on_a_terminal(job, monkeypatch):
    """In one place, with the last batches of each query."""
    with Screen(columns=180) as screen, screen.stream() as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        WatchedJob(job, lambda: with_batches(job, 5), lambda: None, interrupted).watch()

    shown = "\n".join(screen.lines())
    for part in ("daily", "batch times", "last batch 0.5 s", "2 h behind", "▂▄▅▇█"):
        assert part in shown
    assert 1 == shown.count("reading · attempt 2")


def test_status_of_a_killed_driver(job, capsys):
    """A driver that was killed on this machine is shown as dead at once."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    lease = take_lease(job.storage, FakeClock(), owner=identify([child.pid]))
    child.kill()
    child.communicate()
    job.begin().request_run()
    began = SystemClock().monotonic()

    assert EXIT_OK == main(["status", str(job.root)])
    assert "lease 1 (dead, run r1)" in capsys.readouterr().out
    assert SystemClock().monotonic() - began < 10
    lease.release()


# --- cancel -------------------------------------------------------------------------------------


def test_cancel_without_a_driver(job, capsys):
    """With nobody to cancel the command ends with code 2 and puts no request."""
    job.begin()

    assert EXIT_USAGE == main(["cancel", str(job.root)])
    assert "there is nothing to cancel" in capsys.readouterr().err
    assert [] == job.storage.list("requests")


def test_cancel_of_no_job(job, capsys):
    """A location without a job is refused."""
    assert EXIT_USAGE == main(["cancel", str(job.root)])
    assert "no job there" in capsys.readouterr().err


@pytest.mark.slow
def test_cancel_waits_until_the_driver_has_let_go(job, live_driver, capsys):
    """A live driver is asked, answers and lets go; then the command succeeds."""
    job.begin().request_run()

    assert EXIT_OK == main(["cancel", str(job.root)])
    assert f"{job.root}: run r1 cancelled\n" == capsys.readouterr().out
    assert 1 == len(job.storage.list("replies"))


@pytest.mark.slow
def test_cancel_of_a_driver_that_does_not_stop(job, capsys, monkeypatch):
    """
    A driver that does not stop in time is named, with the fix, and the code says try again.
    """
    monkeypatch.setattr(job_commands, "_CANCEL_TIMEOUT_S", 0.0)
    lease = take_lease(job.storage, FakeClock(), run_id="r1", heartbeat_s=0.01)
    job.begin()

    assert EXIT_RETRY == main(["cancel", str(job.root)])
    lease.release()
    assert "has not stopped in 0 seconds" in capsys.readouterr().err.replace("\n", " ")


# --- checkpoint ---------------------------------------------------------------------------------


def test_checkpoint_show(spark, capsys):
    """A checkpoint of any query is explained as JSON."""
    spark.begin().run(0).plan(1)

    assert EXIT_OK == main(["checkpoint", "show", str(spark.root)])
    document = printed(capsys)
    assert (QUERY_ID, 0, 1) == (
        document["query_id"],
        document["last_committed_batch"],
        document["open_batch"],
    )


@pytest.mark.parametrize("action", ["show", "plan-drain"])
def test_no_checkpoint_there(tmp_path, capsys, action):
    """A folder that is no checkpoint ends with code 2 and its address."""
    assert EXIT_USAGE == main(["checkpoint", action, str(tmp_path)])
    assert str(tmp_path) in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())


def test_checkpoint_plan_drain(spark, capsys):
    """A stopped query of any origin is drained by one planned batch, and the next step is said."""
    spark.begin().run(0)

    for _ in range(2):
        assert EXIT_OK == main(["checkpoint", "plan-drain", str(spark.root)])
        assert "batch 1 is planned" in capsys.readouterr().out
    assert MAX_WATERMARK_MS == spark.logs.offsets(1).watermark_ms

    spark.commit(1)
    assert EXIT_OK == main(["checkpoint", "plan-drain", str(spark.root), "--further"])
    assert "batch 2 is planned" in capsys.readouterr().out
    spark.commit(2)
    assert EXIT_OK == main(["checkpoint", "show", str(spark.root)])
    shown = json.loads(capsys.readouterr().out)
    assert (True, "+294147-02-03T04:00:54.775Z") == (shown["drained"], shown["watermark"])


@pytest.mark.parametrize(
    ("state", "exit_code", "complaint"),
    [
        ("open", EXIT_FATAL, "batch 1 is planned and not committed"),
        ("drained", EXIT_USAGE, "drained already, by batch 1"),
        ("contradiction", EXIT_FATAL, "files of this checkpoint are missing"),
        ("damaged", EXIT_FATAL, "is not a known version of Spark's offset log"),
    ],
)
def test_a_checkpoint_that_cannot_be_drained(spark, capsys, state, exit_code, complaint):
    """An open, drained or damaged checkpoint is refused, and nothing is written."""
    spark.begin().run(0)
    if state == "open":
        spark.plan(1)
    elif state == "drained":
        spark.run(1, watermark_ms=MAX_WATERMARK_MS)
    elif state == "contradiction":
        spark.commit(1)
    else:
        (spark.root / "offsets" / "0").write_bytes(b"garbage")
    before = sorted(spark.root.rglob("*"))

    assert exit_code == main(["checkpoint", "plan-drain", str(spark.root)])
    assert complaint in capsys.readouterr().err
    assert before == sorted(spark.root.rglob("*"))


@pytest.mark.parametrize("has_record", [True, False])
@pytest.mark.parametrize("linked", [True, False])
def test_a_checkpoint_of_a_job_is_not_drained_by_hand(tmp_path, capsys, has_record, linked):
    """
    Below a job directory, also of a job that runs now, only the job's drivers plan a drain: its next
    run would read on behind the greatest watermark.
    """
    with bench(tmp_path / "job", HandStagedFiles(tmp_path / "out")) as job:
        job.begun().published(2)
        job.lease()
        if not has_record:
            job.storage.delete("job.json")
        location = tmp_path / "job" / "queries" / "q" / "checkpoint"
        if linked:
            (tmp_path / "link").symlink_to(location)
            location = tmp_path / "link"

        assert EXIT_USAGE == main(["checkpoint", "plan-drain", str(location)])
        assert 1 == job.spark.logs.position().last_offsets
    said = capsys.readouterr().err
    assert f"spark-stream stop {tmp_path / 'job'} --drain" in " ".join(said.split())


@pytest.mark.slow
def test_the_command_runs_as_a_module():
    """``python -m airflow_provider.runtime.cli.main`` is the command."""
    command = [sys.executable, "-m", "airflow_provider.runtime.cli"]
    run = subprocess.run([*command, "--help"], capture_output=True, text=True, check=False)

    assert 0 == run.returncode
    assert run.stdout.startswith("usage: spark-stream")


@pytest.mark.slow
@pytest.mark.parametrize("reads_a_line", [True, False])
def test_a_reader_that_has_seen_enough_is_no_error(job, reads_a_line):
    """As ``head -1``, or a pager that was left: no traceback, and the exit code of the command."""
    job.begin().request_run()
    for number in range(300):  # more than a pipe holds
        job.request_run(f"run-{number}")
    command = [sys.executable, "-m", "airflow_provider.runtime.cli", "status", str(job.root)]
    process = subprocess.Popen(
        [*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    first = stdout_of(process).readline() if reads_a_line else "{\n"
    stdout_of(process).close()
    told = present(process.stderr).read()
    present(process.stderr).close()

    assert ("{\n", EXIT_OK, "") == (first, process.wait(), told)


def nothing(ctx: object) -> None:
    """Stand for a job that is never called."""


# --- rewind -------------------------------------------------------------------------------------


def test_a_run_that_cannot_be_undone_is_refused_without_spark(job, capsys):
    """An unknown run, and one on which others have built, are told before a JVM is started."""
    job.begin().request_run("r1", started="2026-01-01T00:00:00.000Z")
    job.request_run("r2", started="2026-01-02T00:00:00.000Z")
    records = EpochRecords(job.directory.committables("q"), QUERY_ID)
    records.put_published(an_epoch(0))
    records.put_published(dataclasses.replace(an_epoch(1), run_id="r2"))

    assert EXIT_USAGE == main(["rewind", str(job.directory.url), "nobody"])
    assert "no run 'nobody', so there is nothing to rewind" in capsys.readouterr().err
    assert EXIT_FATAL == main(["rewind", str(job.directory.url), "r1"])
    assert "the newest first: r2 (all of them at once: spark-stream rewind --wi" in (
        capsys.readouterr().err
    )
