"""Retry policy of tasks: the error that a task fails with, and when Airflow tries it again."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import socket
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.airflow_versions import (
    AirflowException,
    AirflowFailException,
    RetryDecision,
    RetryPolicy,
    check_retry_policies,
)
from airflow_provider.runtime.base.clock import parse_duration
from airflow_provider.runtime.errors import CheckpointError, ConfigError, LauncherAwayError
from airflow_provider.runtime.errors.explanation import Failure, FailureClass
from airflow_provider.runtime.errors.fixes import Caller, addressing
from airflow_provider.runtime.failures.classify import of_the_system
from airflow_provider.runtime.failures.messages import AFTER_A_TASK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow.sdk import Context

_ENVIRONMENT_DELAY: Final = "5 minutes"  # a lost machine is replaced, or its jobs have moved away
_DATA_MISSING_DELAY: Final = "15 minutes"  # the producer has to notice first


class SparkRunFailedError(AirflowException):
    """A run has failed, and a retry may help.

    Args:
        message: the reason, in one line.
        failure: the failure that the driver recorded; None if it recorded none.
    """

    def __init__(self, message: str, failure: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.failure = dict(failure) if failure is not None else None


def task_error(
    reason: str, *, fatal: bool, failure: Mapping[str, Any] | None = None
) -> AirflowException:
    """Return what a task fails with: permanently, or with a retry if it has one left."""
    text = reason or "the driver ended without a final checkpoint"
    if failure is not None:
        permanent = FailureClass.NON_RECOVERABLE
        found = permanent if fatal else Failure.from_dict(failure).failure_class
        text = f"{text}. Next: {AFTER_A_TASK[found]}"
    return AirflowFailException(text) if fatal else SparkRunFailedError(text, failure)


@contextlib.contextmanager
def task_errors() -> Iterator[None]:
    """Turn errors into those that Airflow retries, or does not.

    Raises:
        AirflowFailException: a retry cannot help.
        SparkRunFailedError: a cluster does not answer, or the job directory cannot be used.
    """
    try:
        with addressing(caller=Caller.OPERATOR):
            yield
    except (ConfigError, CheckpointError) as error:
        raise AirflowFailException(str(error)) from error
    except LauncherAwayError as error:
        raise SparkRunFailedError(str(error)) from error
    except OSError as error:
        failure = dataclasses.replace(of_the_system(error), host=socket.gethostname(), condition="")
        raise SparkRunFailedError(
            f"{failure.describe()}. Next: {AFTER_A_TASK[failure.failure_class]}", failure.to_dict()
        ) from error


class FailureRetryPolicy(RetryPolicy):
    """Retries a failed run by its failure class, up to the task's ``retries``.

    RECOVERABLE failures, and errors outside a run, wait the task's own delay. NON_RECOVERABLE fails
    the task, also without this policy. It requires Airflow 3.3. See docs/troubleshooting.md.

    ::

        SparkStreamingOperator(..., retries=5, retry_policy=FailureRetryPolicy())

    Args:
        environment_delay: the delay after a failure of class ENVIRONMENT.
        data_missing_delay: the delay after a failure of class DATA_MISSING; None fails the task.

    Raises:
        ConfigError: a delay is not a duration, or this version of Airflow has no retry policies.
    """

    def __init__(
        self,
        environment_delay: str | float = _ENVIRONMENT_DELAY,
        data_missing_delay: str | float | None = _DATA_MISSING_DELAY,
    ) -> None:
        check_retry_policies(type(self).__name__)
        self._delays_s: dict[FailureClass, float | None] = {
            FailureClass.ENVIRONMENT: parse_duration(environment_delay, name="environment_delay"),
            FailureClass.DATA_MISSING: None
            if data_missing_delay is None
            else parse_duration(data_missing_delay, name="data_missing_delay"),
        }

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,
        max_tries: int,
        context: Context | None = None,
    ) -> RetryDecision:
        recorded = getattr(exception, "failure", None)
        if not isinstance(exception, SparkRunFailedError) or recorded is None:
            return RetryDecision.default()
        failure = Failure.from_dict(recorded)
        if failure.failure_class not in self._delays_s:
            return RetryDecision.default()
        delay_s = self._delays_s[failure.failure_class]
        if delay_s is None:
            return RetryDecision.fail(failure.describe())
        return RetryDecision.retry(dt.timedelta(seconds=delay_s), failure.describe())

    def serialize(self) -> dict[str, Any]:
        environment, data_missing = self._delays_s.values()
        return {"environment_delay": environment, "data_missing_delay": data_missing}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> FailureRetryPolicy:
        return cls(**data)
