"""The retry policy, where Airflow asks one."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import airflow.sdk
import pytest
from airflow.sdk import DAG
from airflow_names import DagSerialization

from airflow_provider.operators.retry_policy import FailureRetryPolicy, SparkRunFailedError
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.runtime.errors import ConfigError

if not hasattr(airflow.sdk, "RetryPolicy"):
    pytest.skip("this version of Airflow has no retry policies", allow_module_level=True)


def failed(failure_class: str | None) -> SparkRunFailedError:
    failure = {"failure_class": failure_class, "reason": "r", "host": "worker-7"}
    return SparkRunFailedError("r", failure if failure_class else None)


@pytest.mark.parametrize(
    ("error", "action", "minutes"),
    [
        (failed("ENVIRONMENT"), airflow.sdk.RetryAction.RETRY, 5),
        (failed("DATA_MISSING"), airflow.sdk.RetryAction.RETRY, 15),
        (failed("RECOVERABLE"), airflow.sdk.RetryAction.DEFAULT, None),
        (failed(None), airflow.sdk.RetryAction.DEFAULT, None),
        (ValueError("no run's"), airflow.sdk.RetryAction.DEFAULT, None),
    ],
    ids=str,
)
def test_the_retry_policy_decides_by_class(
    error: Exception, action: Any, minutes: int | None
) -> None:
    """
    The environment gets time to recover, the producer more; all else has the task's own delay.
    """
    decision = FailureRetryPolicy().evaluate(error, 1, 3)
    delay = dt.timedelta(minutes=minutes) if minutes else None

    assert (action, delay) == (decision.action, decision.retry_delay)


def test_missing_data_may_fail_the_task_at_once() -> None:
    """
    Where nobody brings what is missing, waiting for it is of no use; the policy survives a DAG's way.
    """
    policy = FailureRetryPolicy(environment_delay="PT1M", data_missing_delay=None)
    again = FailureRetryPolicy.deserialize(json.loads(json.dumps(policy.serialize())))
    task = SparkStreamingOperator(
        task_id="daily",
        dag=DAG("flights", schedule=None),
        job="flights:daily",
        job_dir="/jobs/flights",
        retry_policy=policy,
    )

    assert task.retry_policy is policy
    assert DagSerialization.serialize_dag(task.dag)
    assert airflow.sdk.RetryAction.FAIL is again.evaluate(failed("DATA_MISSING"), 1, 3).action
    assert dt.timedelta(minutes=1) == again.evaluate(failed("ENVIRONMENT"), 1, 3).retry_delay
    with pytest.raises(ConfigError, match="environment_delay: 'soon' is not a duration"):
        FailureRetryPolicy(environment_delay="soon")
