"""Datasets of a run with the rows that it has read and written, from the run's documents."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.api.sinks import Dataset
from airflow_provider.runtime.jobdir.run_records import STREAMING
from airflow_provider.runtime.observe.completeness import published_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory

Rows = dict[Dataset, "int | None"]


@dataclasses.dataclass(frozen=True)
class RunDatasets:
    """The datasets of a run with the rows that it has read or written; None for unknown."""

    inputs: Rows
    outputs: Rows


def datasets_of_run(directory: JobDirectory, run_id: str) -> RunDatasets:
    """Return the datasets of a run's last attempt, with the rows of all its attempts.

    Rows are counted by query, so those of a dataset are unknown where a query reads several.
    """
    run = directory.run(run_id)
    attempt = run.last_attempt()
    datasets = attempt.datasets if attempt is not None else {}
    read, written = _rows_read(run), _rows_written(directory, run)
    inputs: Rows = {}
    outputs: Rows = {}
    for name, query in datasets.items():
        sources = {dataset for found in query["sources"].values() for dataset in _each(found)}
        _count(inputs, sources, read.get(name) if len(sources) == 1 else None)
        for sink, found in query["sinks"].items():
            _count(outputs, _each(found), written.get((name, sink)))
    return RunDatasets(inputs, outputs)


def _rows_read(run: RunDirectory) -> dict[str, int | None]:
    progress, final = run.progress(), run.final()
    if progress is None:
        return {}
    rows = {name: query.get("rows_read") for name, query in progress.queries.items()}
    if final is not None and progress.rows_read != final.rows_read:
        # The last report of a driver that died before its successor ended the run.
        return dict.fromkeys(rows, final.rows_read) if len(rows) == 1 else {}
    return rows


def _rows_written(directory: JobDirectory, run: RunDirectory) -> dict[tuple[str, str], int | None]:
    final, record = run.final(), run.record()
    if final is not None:
        sinks = {name: query["sinks"] for name, query in final.queries.items()}
        return {(name, each["name"]): each["rows"] for name in sinks for each in sinks[name]}
    if record is None or record.mode != STREAMING:
        return {}
    epochs = {name: published_batch(directory, name).epoch for name in record.starting}
    return {
        (name, each["name"]): each.get("run_rows")
        for name, epoch in epochs.items()
        if epoch is not None and epoch.run_id == run.run_id
        for each in epoch.sinks
    }


def _each(found: Iterable[Mapping[str, Any]]) -> list[Dataset]:
    return [Dataset(each["namespace"], each["name"]) for each in found]


def _count(rows: Rows, datasets: Iterable[Dataset], more: int | None) -> None:
    for dataset in datasets:
        before = rows.get(dataset, 0)
        rows[dataset] = None if before is None or more is None else before + more
