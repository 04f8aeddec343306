"""An operator with a job directory, whose templates know the slice of the DAG run."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk import BaseOperator

from airflow_provider.airflow_versions import AirflowFailException
from airflow_provider.hooks.job_memory import JobMemory
from airflow_provider.hooks.task_runs import check_backfill
from airflow_provider.operators.extra_links import SAVEPOINT_LINKS
from airflow_provider.runtime.errors import ConfigError, refusing
from airflow_provider.runtime.jobdir.upgrade_record import active_directory
from airflow_provider.slices import SliceInTemplates, slice_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow.sdk import BaseOperatorLink, Context

SLICE = "slice"


class SlicedOperator(BaseOperator):
    """An operator with a job directory, whose templates know ``slice``.

    Args:
        storage_conn_id: the connection of type ``aws`` with the S3 credentials; by default
            ``[spark_stream] storage_conn_id``, then the environment's credentials.

    Attributes:
        job_dir: the job directory; None when the operator works on something else.
    """

    job_dir: str | None
    operator_extra_links: Collection[BaseOperatorLink] = SAVEPOINT_LINKS
    _job_dir_is_shared: bool = True

    def __init__(self, *, storage_conn_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.storage_conn_id = storage_conn_id

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Any,
        context: Context,
        jinja_env: Any,
        seen_oids: set[int],
    ) -> None:
        if parent is self:  # and not something inside of it
            self._job_dir_is_shared = _is_fixed(self.job_dir)
        names = cast("Mapping[str, Any]", context)
        sliced = {**names, SLICE: SliceInTemplates(functools.partial(slice_of, names))}
        try:
            super()._do_render_template_fields(
                parent, template_fields, cast("Context", sliced), jinja_env, seen_oids
            )
        except ConfigError as error:  # a retry would get the same error
            raise AirflowFailException(str(error)) from error

    def _announce(self, summary: dict[str, Any], context: Context) -> dict[str, Any]:
        for asset in self.outlets:
            context["outlet_events"][asset].extra = summary
        return summary

    def _active_directory(self, job_dir: str) -> str:
        with refusing(job_dir, "read"):
            JobMemory(job_dir).check_same()
            found = active_directory(job_dir)
        if found != job_dir:
            self.log.info("Upgrades have led from %s to %s", job_dir, found)
        return found

    def _check_backfill(self, context: Context, run_id: str | None = None) -> None:
        if self.job_dir is not None:
            names = cast("Mapping[str, Any]", context)
            check_backfill(self.job_dir, names, run_id=run_id, is_shared=self._job_dir_is_shared)


def _is_fixed(argument: Any) -> bool:
    return isinstance(argument, str) and "{{" not in argument and "{%" not in argument
