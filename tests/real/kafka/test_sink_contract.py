"""The ``kafka`` sink on real brokers keeps the contract of sinks, with processes that die and race.

Rows are staged by hand; test_sink_with_spark.py has Spark.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StringType, StructType

from airflow_provider.extensions.kafka.messages import MessageColumns
from airflow_provider.extensions.kafka.sink import KafkaSink
from airflow_provider.runtime.api.sinks import Committable, EpochId, Staged
from airflow_provider.runtime.testing.sinks import SinkContract
from tests.real.kafka.cluster import Cluster
from tests.real.kafka.reading import committed_values

pytestmark = pytest.mark.real


class Frame:
    """Rows ``(id, name)``, as a frame has them."""

    def __init__(self, rows: Sequence[tuple[Any, ...]]) -> None:
        self.rows = rows
        self.schema = StructType().add("key", StringType()).add("value", StringType())


class StagingByHand(KafkaSink):
    """The sink, whose files are written without Spark."""

    def stage(self, df: Any, epoch: EpochId) -> Staged:
        folder = Path(self._folder(epoch))
        shutil.rmtree(folder, ignore_errors=True)
        if not df.rows:
            return Staged({"files": [], "rows": 0}, 0)
        (folder / "a").mkdir(parents=True)
        table = pa.table(
            {
                "key": [str(id_).encode() for id_, _ in df.rows],
                "value": [json.dumps(row).encode() for row in df.rows],
                "headers": pa.nulls(len(df.rows)),
            }
        )
        pq.write_table(table, folder / "a" / "part-0.parquet")
        return Staged({"files": ["a/part-0.parquet"], "rows": len(df.rows)}, len(df.rows))


@dataclasses.dataclass(frozen=True)
class KafkaCase:
    """A topic, whose values are rows as JSON."""

    servers: str
    topic: str
    staging: str

    def open(self) -> KafkaSink:
        return StagingByHand(
            self.topic,
            MessageColumns("value", "key", None),
            {"kafka.bootstrap.servers": self.servers},
            staging=self.staging,
            epochs_topic="spark-stream-epochs",
        )

    def visible(self) -> Sequence[tuple[Any, ...]]:
        values = committed_values(self.servers, self.topic)
        return sorted(tuple(json.loads(value)) for value in values)

    def tampered(self, committable: Committable) -> Sequence[dict[str, Any]]:
        data = committable.data
        return [
            {**data, "files": ["../../../other"]},
            {**data, "files": "part-0"},
            {**data, "rows": data["rows"] + 1},
            {**data, "rows": "many"},
            {"files": data["files"]},
        ]


class TestKafkaSink(SinkContract):
    @pytest.fixture
    def case(self, cluster: Cluster, topic: str, tmp_path: Path) -> KafkaCase:
        cluster.create(topic, 3)
        return KafkaCase(cluster.servers, topic, str(tmp_path / "staging"))

    @pytest.fixture
    def make_frame(self) -> type[Frame]:
        return Frame
