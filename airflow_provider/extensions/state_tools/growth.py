"""Growth of a job's state, from one of its savepoints to the next."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any

from airflow_provider.extensions.state_tools.open_state import open_state
from airflow_provider.extensions.state_tools.reader import StateReader, spark_errors
from airflow_provider.runtime.errors import ConfigError, refusing
from airflow_provider.runtime.jobdir.layout import known_job
from airflow_provider.runtime.savepoints.catalog import find_savepoints

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.savepoints.catalog import Savepoint

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Measure:
    """The size of one stateful operator in one savepoint.

    Attributes:
        savepoint: the savepoint's folder.
        taken: when; ISO 8601.
        batch: after which batch.
        operator: its name.
        bytes: what its files have.
        rows: of all its tables together; None when they were not counted.
    """

    savepoint: str
    taken: str
    query: str
    batch: int
    operator: str
    kind: str
    bytes: int
    rows: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return dataclasses.asdict(self)


def state_growth(job_dir: str, spark: SparkSession | None = None) -> list[Measure]:
    """Measure the state in each savepoint of a job, oldest first.

    Args:
        job_dir: the job's directory.
        spark: counts the rows, which no record knows; None for bytes only.

    Raises:
        UnknownJobError: no job there.
        ConfigError: it has no savepoint.
        RefusedCheckpointError: a savepoint cannot be read.
    """
    directory = known_job(job_dir)
    with refusing(directory.url, "read"):
        savepoints, others = find_savepoints(directory.storage.at("savepoints"))
    for other in others:
        if other.damage is not None:
            log.warning("%s: not measured: %s", other.place.url, other.damage)
    if not savepoints:
        msg = (
            f"{directory.url}: the job has no savepoint; take some with "
            "'spark-stream savepoint take'"
        )
        raise ConfigError(msg)
    return [measure for each in savepoints for measure in _measures(each, spark)]


def _measures(savepoint: Savepoint, spark: SparkSession | None) -> Iterator[Measure]:
    state = open_state(savepoint.url)
    reader = StateReader(spark, state) if spark is not None else None
    for query in state.queries.values():
        for operator in query.operators:
            rows = None
            if reader is not None:
                with spark_errors(query.checkpoint):
                    rows = sum(
                        reader.read(query, address).count()
                        for address in query.tables()
                        if address.operator is operator
                    )
            yield Measure(
                savepoint=savepoint.folder,
                taken=savepoint.record.taken,
                query=query.name,
                batch=query.batch,
                operator=operator.name,
                kind=operator.kind,
                bytes=operator.bytes,
                rows=rows,
            )
