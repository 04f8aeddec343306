"""The options of a run as arguments of the operators."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider.extensions.upgrades.operator import SparkUpgradeOperator
from airflow_provider.operators.arguments import DriverArguments
from airflow_provider.operators.spark_bootstrap import SparkBootstrapOperator
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.runtime.control.bootstrap_request import BootstrapSpec
from airflow_provider.runtime.jobdir.run_options import RunOptions, options_of
from airflow_provider.runtime.jobdir.run_spec import RunSpec


@pytest.mark.parametrize(
    ("kind", "operator"),
    [
        (RunSpec, SparkStreamingOperator),
        (BootstrapSpec, SparkBootstrapOperator),
    ],
)
def test_an_option_has_one_location_in_each_interface(kind, operator):
    """Each field has its own flag and argument, and the argument is one of the operator's."""
    options = options_of(kind).values()
    arguments = [option.argument for option in options if option.argument]
    makers = [inspect.signature(each.__init__) for each in operator.mro() if each is not object]
    known = {name for maker in makers for name in maker.parameters}

    assert len(options) == len({option.flag for option in options})
    assert len(arguments) == len(set(arguments))
    assert [] == [argument for argument in arguments if argument not in known]


def test_type_checkers_know_every_argument(monkeypatch):
    """The typed dictionaries, which scripts write, have what the signatures take."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "scripts")
    operators = importlib.import_module("docs_operators")
    names = inspect.signature(SparkStreamingOperator.__init__).parameters

    assert operators.ARGUMENTS.read_text() == operators.arguments_module()
    assert {*RunOptions.arguments()} <= {*names} & {*DriverArguments.__annotations__}


def test_an_option_is_given_by_default_args_and_to_mapped_tasks():
    """
    Airflow reads the signature, in which each option stands; a misspelt one is refused in one line.
    """
    of_job: dict[str, Any] = {"job": "jobs.py:daily", "job_dir": "/job"}
    with DAG("d", schedule=None, default_args={"late": "fail", "late_limit": 3, "trigger": None}):
        given = SparkStreamingOperator(task_id="a", restart={"type": "none"}, **of_job)
        mapped = SparkStreamingOperator.partial(
            task_id="b", job="jobs.py:daily", until="stopped"
        ).expand(job_dir=["/a", "/b"])
        upgrade = SparkUpgradeOperator(task_id="c", new_job_dir="/new", **of_job)

    assert {"late": "fail", "late_limit": "3", "restart": "none"} == given.run_options
    assert "stopped" == mapped.partial_kwargs["until"]
    assert {"late": "fail", "late_limit": "3"} == upgrade.run_options
    with pytest.raises(
        TypeError, match=r"(?s)Invalid arguments were passed to SparkStreamingOp.*lat"
    ):
        SparkStreamingOperator(task_id="a", lat="fail", **of_job)  # type: ignore[call-arg]
    with pytest.raises(
        TypeError, match=r"(?s)Invalid arguments were passed to SparkUpgradeOp.*mode"
    ):
        SparkUpgradeOperator(task_id="a", new_job_dir="/new", mode="batch", **of_job)
    with pytest.raises(TypeError, match=r"^there is no option 'lat' here; there are mode, until"):
        RunOptions.read_arguments({"lat": "fail"})
