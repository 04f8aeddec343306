"""Names that only later versions of PySpark have: without them, a job fails when it is called."""

from __future__ import annotations

from typing import Any

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceStreamReader,
        InputPartition,
        SimpleDataSourceStreamReader,
    )
    from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
except ImportError:  # before 4.0
    Missing: Any = type("Missing", (), {})
    DataSource = DataSourceStreamReader = InputPartition = Missing  # type: ignore[misc]
    SimpleDataSourceStreamReader = StatefulProcessor = Missing  # type: ignore[misc]
    StatefulProcessorHandle = Missing  # type: ignore[misc]
try:
    from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # before 4.2
    ReadMaxRows: Any = type("ReadMaxRows", (), {})  # type: ignore[no-redef]
    SupportsTriggerAvailableNow: Any = type("Able", (), {})  # type: ignore[no-redef]

__all__ = [
    "DataSource",
    "DataSourceStreamReader",
    "InputPartition",
    "ReadMaxRows",
    "SimpleDataSourceStreamReader",
    "StatefulProcessor",
    "StatefulProcessorHandle",
    "SupportsTriggerAvailableNow",
]
