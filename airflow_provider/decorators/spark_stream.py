"""Decorator ``@task.spark_stream``: a function returns a job's parameters."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from airflow_provider.airflow_versions import determine_kwargs
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.run_spec import check_params, check_secret_params

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator

    from airflow_provider.hooks.driver_hook import DriverHook


class _SparkStreamDecoratedOperator(DecoratedOperator, SparkStreamingOperator):
    """A :class:`SparkStreamingOperator` with parameters that a function returns.

    The function is called when a driver is submitted, and when an ended run is compared with the
    request. It must return the same within a DAG run.

    Args:
        python_callable: returns a mapping, or None for nothing to add.
        op_args: its arguments; templated.
        op_kwargs: its keyword arguments; templated.
        kwargs: those of :class:`SparkStreamingOperator`; returned parameters win over ``params``.
    """

    custom_operator_name = "@task.spark_stream"
    # What the function has returned is shown with the task's other rendered templates.
    overwrite_rtif_after_execution = True
    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *SparkStreamingOperator.template_fields,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **SparkStreamingOperator.template_fields_renderers,
    }

    def __init__(
        self,
        *,
        python_callable: Callable[..., Mapping[str, Any] | None],
        op_args: Sequence[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if inspect.iscoroutinefunction(python_callable):
            raise ConfigError(
                f"@task.spark_stream: {python_callable.__name__} is async; write a plain function"
            )
        super().__init__(
            python_callable=python_callable, op_args=op_args, op_kwargs=op_kwargs, **kwargs
        )

    def _check(self, hook: DriverHook, context: Context) -> None:
        self._call(context)
        super()._check(hook, context)

    def _check_ended(self, run_id: str, context: Context) -> None:
        self._call(context)
        super()._check_ended(run_id, context)

    def _call(self, context: Context) -> None:
        self.job_params = {**self.job_params, **self._returned(context)}
        check_secret_params(self.job_params, self.secret_params)

    def _returned(self, context: Context) -> dict[str, Any]:
        names = {**context, **self.op_kwargs}
        given = determine_kwargs(self.python_callable, self.op_args, names)
        returned = self.python_callable(*self.op_args, **given)
        if returned is not None and not isinstance(returned, Mapping):
            raise ConfigError(
                f"@task.spark_stream: {self.python_callable.__name__} has returned "
                f"{type(returned).__name__}; return the job's parameters by name, or None"
            )
        found = dict(returned or {})
        check_params(found)
        return found


def spark_stream_task(
    python_callable: Callable[..., Mapping[str, Any] | None] | None = None,
    *,
    multiple_outputs: bool = False,
    **kwargs: Any,
) -> TaskDecorator:
    """Make a :class:`SparkStreamingOperator` from a function that returns the job's parameters.

    Args:
        python_callable: the function.
        multiple_outputs: whether each field of the final checkpoint becomes a separate XCom.
        kwargs: those of :class:`SparkStreamingOperator`.
    """
    decorator: TaskDecorator = task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=_SparkStreamDecoratedOperator,
        **kwargs,
    )
    return decorator
