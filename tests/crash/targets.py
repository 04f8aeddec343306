"""Locations of sinks, read by programs that are not the sinks."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from airflow_provider.runtime.storage.open import open_objects
from tests.contract.conftest import BUCKET
from tests.extensions.iceberg.iceberg_support import catalog_properties, load


@dataclasses.dataclass(frozen=True)
class Target:
    """A table or folder of one sink.

    Attributes:
        kind: the sink.
        root: a folder of the test.
        url: of PostgreSQL.
        name: of the folder or table.
    """

    kind: str
    root: Path
    url: str
    name: str

    @property
    def location(self) -> str:
        """Return the location as a parameter of the job."""
        if self.kind == "iceberg":
            return json.dumps(self._catalog())
        locations = {"bucket": f"s3://{BUCKET}/{self.root.name}/{self.name}", "postgres": self.url}
        return locations.get(self.kind, str(self.root / self.name))

    def values(self, column: str) -> list[Any]:
        """Return the visible values of a column."""
        return list(getattr(self, f"_{self.kind}")(column))

    def _files(self, column: str) -> Any:
        files = (self.root / self.name).glob("*.parquet")
        return [v for file in files for v in pq.read_table(file)[column].to_pylist()]

    def _bucket(self, column: str) -> Any:
        storage = open_objects(self.location)
        assert storage is not None
        found = [pq.read_table(io.BytesIO(storage.read(path))) for path, _ in storage.files()]
        return [v for table in found for v in table[column].to_pylist()]

    def _delta(self, column: str) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self.location).to_pyarrow_table(columns=[column])[column].to_pylist()

    def _catalog(self) -> dict[str, str]:
        kept = self.root / "catalog.json"
        if not kept.exists():
            kept.write_text(json.dumps(catalog_properties(self.root)), encoding="utf-8")
        return dict(json.loads(kept.read_text(encoding="utf-8")))

    def _iceberg(self, column: str) -> Any:
        table = load(self._catalog(), f"ns.{self.name}")
        return table.scan(selected_fields=(column,)).to_arrow()[column].to_pylist()

    def _postgres(self, column: str) -> Any:
        import psycopg

        with psycopg.connect(self.url) as connection:
            return [v for (v,) in connection.execute(f'select "{column}" from {self.name}')]
