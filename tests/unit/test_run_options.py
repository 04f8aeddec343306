"""Options: one field of a request each, given on the command line or by an operator."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import inspect

import pytest

from airflow_provider.operators.spark_bootstrap import SparkBootstrapOperator
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.runtime.cli.command_parser import add_options, read_options
from airflow_provider.runtime.control.bootstrap_request import BootstrapSpec
from airflow_provider.runtime.errors import ConfigError, CorruptDocumentError
from airflow_provider.runtime.failures.restart_strategy import Failover
from airflow_provider.runtime.jobdir.run_options import check_params, parse_params
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.storage.local import LocalStorage

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
    ("kind", "operator"),
    [(RunSpec, SparkStreamingOperator), (BootstrapSpec, SparkBootstrapOperator)],
)
def test_an_option_has_one_place_in_each_interface(kind, operator):
    """
    Each field has its own flag and argument, and the argument is one of the operator's.
    """
    options = [f.metadata["option"] for f in dataclasses.fields(kind) if "option" in f.metadata]
    arguments = [option.argument for option in options if option.argument]
    known = inspect.signature(operator.__init__).parameters

    assert len(options) == len({option.flag for option in options})
    assert len(arguments) == len(set(arguments))
    assert [] == [argument for argument in arguments if argument not in known]


def test_the_command_line_gives_every_option():
    """
    What flags give is the request with these values; without flags it has its defaults.
    """
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
    """
    Every option reaches the driver through the document, whatever its type.
    """
    storage = LocalStorage(str(tmp_path))

    sent = dataclasses.replace(FULL, driver_id="d1", trigger_s=60)
    sent.send(storage)

    received = RunSpec.receive(storage, "d1", sent.sha256())
    assert sent == received
    with pytest.raises(CorruptDocumentError, match="changed after driver d1 was submitted"):
        RunSpec.receive(storage, "d1", "0" * 64)


@pytest.mark.parametrize(
    "value",
    [START, (1, 2), {1: "a"}, {"a": {2}}, float("nan"), b"a", {"a": [float("inf")]}],
    ids=repr,
)
def test_a_parameter_that_json_cannot_hold_is_refused(value):
    """
    It would reach the job as something else; the error names the parameter.
    """
    with pytest.raises(ConfigError, match="parameter 'p': .* is not a value of JSON"):
        check_params({"p": value})


def test_a_parameter_that_is_no_json_is_refused():
    """
    After := there must be JSON.
    """
    assert {"a:b": "1", "c": [1]} == parse_params(["a:b=1", "c:=[1]"])
    with pytest.raises(ConfigError, match="--param n:=three: what follows := must be JSON"):
        parse_params(["n:=three"])
