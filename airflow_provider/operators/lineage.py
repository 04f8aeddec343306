"""Lineage of tasks that own a driver; OpenLineage is imported only when it is used."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from airflow_provider.airflow_versions import conf as airflow_conf
from airflow_provider.operators.sliced import SlicedOperator
from airflow_provider.runtime.api.sinks import Dataset
from airflow_provider.runtime.errors.redaction import shown_address
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.row_counts import RowCounts
from airflow_provider.runtime.jobdir.run_options import FAIL
from airflow_provider.runtime.jobdir.run_records import STREAMING
from airflow_provider.runtime.storage.open import credentials_in_use, is_in_s3, using

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory
    from airflow_provider.runtime.storage.open import StoreCredentials

# A command line is read by every user of a machine.
_SECRET_KEY: Final = re.compile(r"^spark\.openlineage\.transport\.(.+\.)?(auth|headers)\.")
_Rows: TypeAlias = "dict[Dataset, int | None]"


class LineageOperator(SlicedOperator):
    """An operator that reports the datasets of its run to OpenLineage.

    Args:
        openlineage_inject_parent_job_info: let Spark's OpenLineage listener name this task as its
            parent; by default ``[openlineage] spark_inject_parent_job_info``.
        openlineage_inject_transport_info: let it send its events where Airflow does, without
            secrets; by default ``[openlineage] spark_inject_transport_info``.
        kwargs: those of other operators.
    """

    _lineage_context: Context | None = None
    _credentials: StoreCredentials | None = None
    _has_opened = False

    def __init__(
        self,
        *,
        openlineage_inject_parent_job_info: bool | None = None,
        openlineage_inject_transport_info: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.openlineage_inject_parent_job_info = _chosen(
            openlineage_inject_parent_job_info, "spark_inject_parent_job_info"
        )
        self.openlineage_inject_transport_info = _chosen(
            openlineage_inject_transport_info, "spark_inject_transport_info"
        )

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any] | None:
        """Return the datasets of a run that has begun before: at a retry, or after a deferral."""
        return self._lineage()

    def get_openlineage_facets_on_complete(
        self, task_instance: Any
    ) -> OperatorLineage[Any, Any] | None:
        del task_instance
        return self._lineage()

    def get_openlineage_facets_on_failure(
        self, task_instance: Any
    ) -> OperatorLineage[Any, Any] | None:
        del task_instance
        return self._lineage()

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Any,
        context: Context,
        jinja_env: Any,
        seen_oids: set[int],
    ) -> None:
        if parent is self:  # OpenLineage asks without a context
            self._lineage_context = context
        super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)

    def _current(self, context: Context) -> str:
        raise NotImplementedError

    def _keep_credentials(self) -> None:
        """Keep those of the storage that is open: OpenLineage asks in a fork, without Airflow."""
        self._credentials, self._has_opened = credentials_in_use(), True

    def _lineage(self) -> OperatorLineage[Any, Any] | None:
        if self._lineage_context is None or self.job_dir is None:
            return None
        if is_in_s3(self.job_dir) and not self._has_opened:
            return None  # it is not known with which connection
        with using(self._credentials):
            directory = directory_at(self.job_dir)
            found = datasets_of_run(directory, self._current(self._lineage_context))
        if not found.inputs and not found.outputs:
            return None
        return _as_openlineage(found)

    def _lineage_injector(self) -> Callable[[Mapping[str, str]], dict[str, str]] | None:
        wanted = self.openlineage_inject_parent_job_info or self.openlineage_inject_transport_info
        return self._with_lineage if wanted else None

    def _with_lineage(self, conf: Mapping[str, str]) -> dict[str, str]:
        from airflow.providers.common.compat.openlineage.utils.spark import (
            inject_parent_job_information_into_spark_properties as inject_parent,
        )
        from airflow.providers.common.compat.openlineage.utils.spark import (
            inject_transport_information_into_spark_properties as inject_transport,
        )

        found, context = dict(conf), self._lineage_context
        if context is not None and self.openlineage_inject_parent_job_info:
            found = inject_parent(found, context)
        if context is not None and self.openlineage_inject_transport_info:
            found = inject_transport(found, context)
        added = {key: str(value) for key, value in found.items() if key not in conf}
        secret = sorted(key for key, value in added.items() if _is_secret(key, value))
        if secret:
            self.log.warning(
                "%s: not injected, for a command line is no place for secrets; write it into "
                "conf/spark-defaults.conf of the Spark that the driver has",
                ", ".join(secret),
            )
        return {**conf, **{key: value for key, value in added.items() if key not in secret}}


@dataclasses.dataclass(frozen=True)
class RunDatasets:
    """The datasets of a run with the rows that it has read or written; None for unknown.

    Attributes:
        checks: the rules for the rows of inputs.
    """

    inputs: _Rows
    outputs: _Rows
    checks: Mapping[Dataset, Sequence[RowCheck]] = dataclasses.field(default_factory=dict)


class RowCheck(NamedTuple):
    """A rule for the rows of a dataset, or for its records; *on* is the job's policy."""

    name: str
    rows: int
    broken: int
    on: str


def datasets_of_run(directory: JobDirectory, run_id: str) -> RunDatasets:
    """Return the datasets of a run's last attempt, with the rows of all its attempts.

    Where rows are counted by query alone, those of a dataset are unknown if a query reads several.
    """
    run = directory.run(run_id)
    attempt = run.last_attempt()
    datasets = attempt.datasets if attempt is not None else {}
    read, written = _rows_read(run), _rows_written(directory, run)
    inputs: _Rows = {}
    outputs: _Rows = {}
    checks: dict[Dataset, list[RowCheck]] = {}
    row_counts = _row_counts(run)
    for name, query in datasets.items():
        sources = {dataset for found in query["sources"].values() for dataset in _each(found)}
        counts = row_counts.get(name, RowCounts())
        if len(sources) == 1:
            _count(inputs, sources, read.get(name))
        else:
            _count_each(inputs, query["sources"], counts.sources)
        for source, found in query["sources"].items():
            for dataset in _each(found):
                checks.setdefault(dataset, []).extend(_checks_of(counts, source))
        for sink, found in query["sinks"].items():
            _count(outputs, _each(found), written.get((name, sink)))
    return RunDatasets(inputs, outputs, checks)


def _row_counts(run: RunDirectory) -> dict[str, RowCounts]:
    counted = run.final() or run.progress()
    queries = counted.queries if counted is not None else {}
    return {name: query.row_counts for name, query in queries.items()}


def _checks_of(row_counts: RowCounts, source: str) -> Iterator[RowCheck]:
    rejected = {f"records of {source}": row_counts.rejected.get(source)}
    for name, each in {**rejected, **row_counts.rules}.items():
        if each is not None:
            yield RowCheck(name, each.rows, each.broken, each.on)


def _count_each(rows: _Rows, sources: Mapping[str, Any], known: Mapping[str, int | None]) -> None:
    found = [(name, dataset) for name in sources for dataset in _each(sources[name])]
    for name, dataset in found:
        is_alone = sum(each == name for each, _ in found) == 1
        _count(rows, [dataset], known.get(name) if is_alone else None)


def _rows_read(run: RunDirectory) -> dict[str, int | None]:
    progress, final = run.progress(), run.final()
    if progress is None:
        return {}
    rows = {name: query.rows_read for name, query in progress.queries.items()}
    if final is not None and progress.rows_read != final.rows_read:
        # The last report of a driver that died before its successor ended the run.
        return dict.fromkeys(rows, final.rows_read) if len(rows) == 1 else {}
    return rows


def _rows_written(directory: JobDirectory, run: RunDirectory) -> dict[tuple[str, str], int | None]:
    final, record = run.final(), run.record()
    if final is not None:
        return {
            (name, each.name): each.rows
            for name, query in final.queries.items()
            for each in query.sinks
        }
    if record is None or record.mode != STREAMING:
        return {}
    from airflow_provider.runtime.observe.completeness import published_batch  # see driver_hook

    epochs = {name: published_batch(directory, name).epoch for name in record.starting}
    return {
        (name, each["name"]): each.get("run_rows")
        for name, epoch in epochs.items()
        if epoch is not None and epoch.run_id == run.run_id
        for each in epoch.sinks
    }


def _each(found: Iterable[Mapping[str, Any]]) -> list[Dataset]:
    return [Dataset(each["namespace"], each["name"]) for each in found]


def _count(rows: _Rows, datasets: Iterable[Dataset], more: int | None) -> None:
    for dataset in datasets:
        before = rows.get(dataset, 0)
        rows[dataset] = None if before is None or more is None else before + more


def _as_openlineage(found: RunDatasets) -> OperatorLineage[Any, Any]:
    from airflow.providers.common.compat.openlineage.facet import (
        InputDataset,
        OutputDataset,
        OutputStatisticsOutputDatasetFacet,
    )
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.facet_v2 import data_quality_assertions_dataset as quality
    from openlineage.client.facet_v2 import input_statistics_input_dataset as input_statistics

    def assertion(check: RowCheck) -> quality.Assertion:
        return quality.Assertion(
            assertion=check.name,
            success=check.broken == 0,
            severity="error" if check.on == FAIL else "warn",
            expected="0",
            actual=str(check.broken),
        )

    def read(dataset: Dataset, rows: int | None) -> dict[str, Any]:
        facet = input_statistics.InputStatisticsInputDatasetFacet(rowCount=rows)
        facets: dict[str, Any] = {} if rows is None else {"inputStatistics": facet}
        if checks := found.checks.get(dataset):
            assertions = [assertion(each) for each in checks]
            facets["dataQualityAssertions"] = quality.DataQualityAssertionsDatasetFacet(assertions)
        return facets

    def written(rows: int | None) -> dict[str, Any]:
        facet = OutputStatisticsOutputDatasetFacet(rowCount=rows)
        return {} if rows is None else {"outputStatistics": facet}

    return OperatorLineage(
        inputs=[
            InputDataset(namespace, name, inputFacets=read(Dataset(namespace, name), rows))
            for (namespace, name), rows in found.inputs.items()
        ],
        outputs=[
            OutputDataset(namespace, name, outputFacets=written(rows))
            for (namespace, name), rows in found.outputs.items()
        ],
    )


def _chosen(argument: bool | None, option: str) -> bool:  # noqa: FBT001 - as it was given
    if argument is not None:
        return argument
    return bool(airflow_conf.getboolean("openlineage", option, fallback=False))


def _is_secret(key: str, value: str) -> bool:
    is_with_credentials = "://" in value and shown_address(value) != value
    return is_with_credentials or bool(_SECRET_KEY.search(key))
