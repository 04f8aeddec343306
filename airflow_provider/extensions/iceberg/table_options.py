"""Options of an Iceberg table as a source, as they travel to Spark's Python workers as texts."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.errors import ConfigError
from airflow_provider.runtime.api.kit.typed_json import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

SNAPSHOT: Final = "snapshot"
NOW: Final = "now"
APPENDED_ROWS: Final = "appended rows only"
Starts = str | int | dt.datetime


@dataclasses.dataclass(frozen=True)
class TableOptions:
    """See :func:`~airflow_provider.extensions.iceberg.source.iceberg_table`.

    Attributes:
        max_rows: the rows of a batch, for a source without *max_files*; None for no limit.
        schema: the table's schema when the DataFrame was made, as Iceberg's JSON; "" before.
    """

    table: str
    catalog: str | Mapping[str, str] = dataclasses.field(repr=False, hash=False)
    starts: Starts = SNAPSHOT
    changes: str | None = None
    columns: tuple[str, ...] | None = None
    where: str | None = None
    max_files: int | None = None
    on_gap: str | None = None
    max_rows: int | None = None
    schema: str = dataclasses.field(default="", repr=False)

    def __post_init__(self) -> None:
        namespace, _, name = self.table.rpartition(".")
        if not namespace or not name:
            raise ConfigError(f"{self.name}: name the table with its namespace: 'namespace.table'")
        self._check_starts()
        if self.changes not in {None, APPENDED_ROWS}:
            raise ConfigError(
                f"{self.name}: changes={self.changes!r}: leave it out, or use {APPENDED_ROWS!r}"
            )
        if self.on_gap not in {None, SNAPSHOT}:
            raise ConfigError(
                f"{self.name}: on_gap={self.on_gap!r}: leave it out, or use {SNAPSHOT!r}"
            )
        if self.columns is not None and not self.columns:
            raise ConfigError(f"{self.name}: columns: name at least one column")
        if self.max_files is not None and self.max_files < 1:
            raise ConfigError(f"{self.name}: max_files={self.max_files}: at least 1")

    def _check_starts(self) -> None:
        starts = self.starts
        if isinstance(starts, dt.datetime):
            if starts.tzinfo is None:
                raise ConfigError(f"{self.name}: starts={starts.isoformat()}: give it a time zone")
        elif isinstance(starts, bool) or not (isinstance(starts, int) or starts in {SNAPSHOT, NOW}):
            raise ConfigError(
                f"{self.name}: starts={starts!r}: use {SNAPSHOT!r}, {NOW!r}, the id of a snapshot, "
                "or a datetime with a time zone"
            )

    @property
    def name(self) -> str:
        """The table's name in messages."""
        return f"iceberg:{self.table}"

    def to_spark(self) -> dict[str, str]:
        """Return the options of Spark's reader.

        The catalog's properties may hold secrets; Spark redacts an option of this name where it
        shows options.
        """
        starts = self.starts
        texts = {
            "table": self.table,
            "catalogSecret": json.dumps(
                self.catalog if isinstance(self.catalog, str) else dict(self.catalog)
            ),
            "starts": starts.isoformat() if isinstance(starts, dt.datetime) else str(starts),
            "changes": self.changes,
            "columns": None if self.columns is None else json.dumps(self.columns),
            "where": self.where,
            "maxFiles": None if self.max_files is None else str(self.max_files),
            "maxRows": None if self.max_rows is None else str(self.max_rows),
            "onGap": self.on_gap,
            "schema": self.schema,
        }
        return {key: text for key, text in texts.items() if text is not None}

    @classmethod
    def from_spark(cls, texts: Mapping[str, str]) -> TableOptions:
        """Read what :meth:`to_spark` returned; further options are ignored.

        Raises:
            ConfigError: the reader was not made by ``iceberg_table(…)``.
        """
        if not texts.get("table") or not texts.get("schema"):
            raise ConfigError(
                "format 'spark-stream-iceberg' is read through "
                "airflow_provider.extensions.iceberg.iceberg_table(…), which fixes its columns"
            )
        columns = texts.get("columns")
        return cls(
            table=texts["table"],
            catalog=read_json(texts["catalogSecret"]),
            starts=_starts_of(texts["starts"]),
            changes=texts.get("changes"),
            columns=None if columns is None else tuple(read_json(columns)),
            where=texts.get("where"),
            max_files=_number(texts.get("maxFiles")),
            on_gap=texts.get("onGap"),
            max_rows=_number(texts.get("maxRows")),
            schema=texts["schema"],
        )


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _starts_of(text: str) -> Any:
    if text in {SNAPSHOT, NOW}:
        return text
    return int(text) if text.lstrip("-").isdecimal() else dt.datetime.fromisoformat(text)
