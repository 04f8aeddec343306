"""Options: one field of a request each, given on the command line or by an operator."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt

import pytest

from airflow_provider.runtime.cli.command_parser import add_options, read_options
from airflow_provider.runtime.errors import ConfigError, CorruptDocumentError
from airflow_provider.runtime.errors.fixes import Caller, addressing
from airflow_provider.runtime.failures.restart_strategy import Failover
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.run_options import RunOptions
from airflow_provider.runtime.jobdir.run_spec import RunSpec, check_params, parse_params
from airflow_provider.runtime.jobdir.runs import check_same_spec
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import a_run, a_submission

START = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
PLAIN = ["/job", "--entry", "jobs.py:daily"]
FULL = RunSpec(
    job_dir="/job",
    entry="jobs.py:daily",
    run_id="r1",
    params={"n": 3, "text": "a=b", "deep": {"x": [None, 0.5]}},
    secret_params={"password": "PASSWORD"},
    mode="streaming",
    until="stopped",
    at_end="suspend",
    trigger_s=60.0,
    target_batch_s=0.0,
    interval=(START, START + dt.timedelta(days=1)),
    from_savepoint="/s/1",
    allow_non_restored_state=True,
    state_partitions=5,
    replayable_runs=3,
    replays="r0",
    restart="none",
    failover=Failover.FULL,
    fails_as={"jobs.BadRow": "NON_RECOVERABLE"},
    late="fail",
    late_limit="0.1%",
    missing_input="fail",
    master="local[2]",
    conf={"spark.a": "b"},
)


def parsed(kind, *argv: str):
    parser = argparse.ArgumentParser()
    add_options(parser, kind)
    return read_options(parser.parse_args(argv), kind)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"mode": "bach"}, "^mode 'bach': use one of 'automatic', 'streaming', 'batch'"),
        ({"failover": "all"}, "^failover 'all': use one of 'region', 'full'"),
        ({"missing_input": "wait"}, "^missing_input 'wait': use one of 'retry', 'fail'"),
        ({"trigger": "soon"}, "^trigger: 'soon' is not a duration"),
        ({"target_batch_time": -1}, "^target_batch_time: -1 is not a duration"),
        ({"replayable_runs": -1}, "^replayable_runs -1: a number of runs"),
        ({"fails_as": {"a b": "X"}}, "a b"),
        ({"trigger": 5, "until": "end"}, "^trigger is the time between batches"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_by_name(given, why):
    """When the DAG file is parsed, in one line."""
    with pytest.raises(ConfigError, match=why):
        RunOptions.read_arguments(given)


def test_another_attempt_that_changes_a_fixed_option_hears_its_name_from_the_caller():
    """A task hears of the operator's argument, a shell of the flag."""
    begun, asked = a_run(until="end"), a_run(until="stopped")
    with pytest.raises(ConfigError, match="begun with --until='end' and is now requested with --u"):
        check_same_spec(asked, begun)
    with (
        addressing(caller=Caller.OPERATOR),
        pytest.raises(ConfigError, match=r"begun with until='end' and is now requested with unt"),
    ):
        check_same_spec(asked, begun)


def test_the_command_line_gives_every_option():
    """What flags give is the request with these values; without flags it has its defaults."""
    given = [
        *("--run-id", "r1", "--param", "n:=3", "--param", "text=a=b"),
        *("--param", 'deep:={"x": [null, 0.5]}', "--secret-param", "password=PASSWORD"),
        *("--mode", "streaming", "--until", "stopped", "--at-end", "suspend"),
        *("--trigger", "1 minute", "--target-batch-time", "off"),
        *("--interval", "2026-01-01", "2026-01-02T01:00:00+01:00", "--from-savepoint", "/s/1"),
        *("--allow-non-restored-state", "--state-partitions", "5", "--replayable-runs", "3"),
        *("--replay", "r0", "--restart", "none", "--failover", "full"),
        *("--fails-as", "jobs.BadRow=NON_RECOVERABLE", "--master", "local[2]"),
        *("--conf", "spark.a=b", "--late", "fail", "--late-limit", "0.1%"),
        *("--missing-input", "fail"),
    ]

    assert FULL == parsed(RunSpec, *PLAIN, *given)
    assert RunSpec(job_dir="/job", entry="jobs.py:daily") == parsed(RunSpec, *PLAIN)


def test_a_request_is_read_as_it_was_sent(tmp_path):
    """Every option reaches the driver through the document, whatever its type."""
    run = JobDirectory(LocalStorage(str(tmp_path))).run("r1")

    sent = dataclasses.replace(FULL, driver_id="d1", trigger_s=60)
    run.put_submission(sent.inside(a_submission("d1")))

    received = RunSpec.receive(run.storage, "d1", sent.sha256())
    assert sent == received
    with pytest.raises(CorruptDocumentError, match="changed after driver d1 was submitted"):
        RunSpec.receive(run.storage, "d1", "0" * 64)


@pytest.mark.parametrize(
    "value",
    [START, (1, 2), {1: "a"}, {"a": {2}}, float("nan"), b"a", {"a": [float("inf")]}],
    ids=repr,
)
def test_a_parameter_that_json_cannot_hold_is_refused(value):
    """It would reach the job as something else; the error names the parameter."""
    with pytest.raises(ConfigError, match="parameter 'p': .* is not a value of JSON"):
        check_params({"p": value})


def test_a_parameter_that_is_no_json_is_refused():
    """After := there must be JSON."""
    assert {"a:b": "1", "c": [1]} == parse_params(["a:b=1", "c:=[1]"])
    with pytest.raises(ConfigError, match="--param n:=three: what follows := must be JSON"):
        parse_params(["n:=three"])
