"""A data source in Python: the lines of a file, which it reads to where they ended at the start."""

# ruff: noqa: N802 - the methods of a data source have Spark's names
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, SupportsTriggerAvailableNow


class Reader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads in one batch what was there when the query started."""

    def __init__(self, options: Any) -> None:
        self._file = options["file"]
        self._end: int | None = None

    def initialOffset(self) -> dict[str, int]:
        return {"lines": 0}

    def getDefaultReadLimit(self) -> Any:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._end = self._lines()

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        return {"lines": self._lines() if self._end is None else self._end}

    def partitions(self, start: Any, end: Any) -> Any:
        return [InputPartition(json.dumps([start["lines"], end["lines"]]))]

    def read(self, partition: Any) -> Any:
        first, last = json.loads(partition.value)
        lines = Path(self._file).read_text(encoding="utf-8").splitlines()
        return iter([(int(line),) for line in lines[first:last]])

    def _lines(self) -> int:
        path = Path(self._file)
        return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0


class Numbers(DataSource):
    """The numbers of the file that the option ``file`` names, one in a line."""

    @classmethod
    def name(cls) -> str:
        return "numbers-of-a-file"

    def schema(self) -> str:
        return "id long"

    def streamReader(self, schema: Any) -> Any:
        return Reader(self.options)
