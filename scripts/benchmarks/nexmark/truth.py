"""Comparison of a query's output with what DuckDB gives over all events."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import duckdb

QUERIES: Final = Path(__file__).with_name("truth.sql")
MEMORY: Final = "4 GiB"
"""Beyond it DuckDB uses the disk; its own default is most of the machine, where JVMs live, too."""
PARTITIONED: Final = {"q10": ("dt", "hm")}
"""The last columns of a query that are names of folders."""


class Truth:
    """The rows of each query over one set of events.

    Args:
        events: the folder that ``generator.write_events`` has written.
    """

    def __init__(self, events: Path) -> None:
        self.events = str(events)
        self._duckdb = duckdb.connect()
        self._duckdb.execute("SET TimeZone = 'UTC'")
        self._duckdb.execute(f"SET memory_limit = '{MEMORY}'")
        self._duckdb.execute("SET temp_directory = ?", [f"{self.events}/.duckdb"])
        self._duckdb.execute("SET VARIABLE events = ?", [self.events])
        self._duckdb.execute(QUERIES.read_text(encoding="utf-8"))

    def difference(self, query: str, output: Path) -> str | None:
        """Return how the rows in the CSV files of *output* differ from the truth, or None."""
        known, found = self._known(query), f"found_{query}"
        self._duckdb.execute(f"CREATE OR REPLACE TEMP TABLE {found} AS FROM {known} LIMIT 0")
        files = sorted(str(path) for path in output.rglob("*") if _is_data(path, output))
        if files:
            self._duckdb.execute(f"INSERT INTO {found} FROM {self._csv(query)}", [files])
        missing = self._count(f"FROM {known} EXCEPT ALL FROM {found}")
        surplus = self._count(f"FROM {found} EXCEPT ALL FROM {known}")
        if not missing and not surplus:
            return None
        rows = f"{self._count(f'FROM {found}')} rows, not {self.rows(query)}"
        return f"{rows}: {missing} are missing, {surplus} too many"

    def rows(self, query: str) -> int:
        """Return how many rows a query gives."""
        return self._count(f"FROM {self._known(query)}")

    def events_of(self, table: str) -> int:
        """Return how many events a table has."""
        return self._count(f"FROM {table}")

    def _known(self, query: str) -> str:
        self._duckdb.execute(f"CREATE TEMP TABLE IF NOT EXISTS known_{query} AS FROM {query}")
        return f"known_{query}"

    def _csv(self, query: str) -> str:
        """Return the call that reads files of the query's columns; it has one parameter."""
        folders = PARTITIONED.get(query, ())
        described = self._duckdb.execute(f"DESCRIBE known_{query}").fetchall()
        in_files = enumerate(described[: len(described) - len(folders)])
        columns = ", ".join(f"c{number}: '{kind}'" for number, (_, kind, *_) in in_files)
        text = f"read_csv(?, columns = {{{columns}}}, header = false, quote = '', escape = ''"
        if folders:
            partitions = ", ".join(f"{name}: VARCHAR" for name in folders)
            text += f", hive_partitioning = true, hive_types = {{{partitions}}}"
        return f"{text})"

    def _count(self, rows: str) -> int:
        ((count,),) = self._duckdb.sql(rows).count("*").fetchall()
        return int(count)


def _is_data(path: Path, below: Path) -> bool:
    parts = path.relative_to(below).parts
    return path.is_file() and path.stat().st_size > 0 and not any(p[0] in "._" for p in parts)
