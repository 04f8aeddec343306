"""Options of a Delta table as a source, as Python has them and as Spark passes them on. Pure.

The options of the store are secrets: Spark redacts the option that carries them by its name, and
no text of this package shows their values.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.delta.partition_values import (
    OPERATORS,
    Condition,
    parse_conditions,
)
from airflow_provider.runtime.api.errors import ConfigError
from airflow_provider.runtime.api.kit.locations import local_path_of
from airflow_provider.runtime.api.kit.messages import shown_address, without_credentials
from airflow_provider.runtime.api.kit.typed_json import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORMAT: Final = "spark-stream-delta"
"""The name of the data source."""
SNAPSHOT: Final = "snapshot"
NOW: Final = "now"
APPENDED: Final = "appended rows only"
"""The value of ``changes=`` that skips commits which delete or update rows."""
FEED: Final = "feed"
"""The value of ``changes=`` that reads the change data feed."""
Start = str | int | dt.datetime

_INTERNAL: Final = "spark-stream."  # the runtime's own, such as the source's name
_OPTIONS: Final = {
    name.lower(): name
    for name in (
        *("path", "starts", "changes", "columns", "where", "onGap"),
        *("maxFilesPerTrigger", "maxRowsPerTrigger", "secretStorageOptions"),
    )
}
_NOISE: Final = re.compile(r"\x1b\[[0-9;]*m|\s\d+: <unknown>.*", re.DOTALL)  # of errors in Rust
_SHORTEST_SECRET: Final = 4  # a shorter value, such as "1", would be found in every text


@dataclasses.dataclass(frozen=True)
class TableOptions:
    """The checked options of a source; see :func:`~.delta_table` for their meaning."""

    path: str
    starts: Start = SNAPSHOT
    changes: str | None = None
    columns: tuple[str, ...] | None = None
    where: tuple[Condition, ...] = ()
    max_files: int | None = None
    max_rows: int | None = None
    on_gap: str | None = None
    storage_options: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ConfigError: one is wrong; it is named.
        """
        if not self.path:
            raise ConfigError("path: name the table's folder")
        check_start(self.starts)
        _check_choice("changes", self.changes, APPENDED, FEED)
        _check_choice("on_gap", self.on_gap, SNAPSHOT)
        if self.reads_feed and self.on_gap is not None:
            raise ConfigError(
                f"on_gap: {self.on_gap!r} does not go with changes={FEED!r}: a new snapshot does "
                "not tell which rows were deleted in the gap; leave it out, and begin with a new "
                "query and a new output after a gap"
            )
        for name in ("max_files", "max_rows"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigError(f"{name}: {value!r} is not a whole number of at least 1")
        if self.columns is not None and len(set(self.columns)) < max(len(self.columns), 1):
            raise ConfigError("columns: name at least one column, and each once")

    @property
    def reads_feed(self) -> bool:
        """Whether the rows are those of the change data feed."""
        return self.changes == FEED

    @property
    def after_gap(self) -> str:
        """The fix if files or entries of the log that are needed next are missing."""
        if self.reads_feed:
            return "Begin with a new query and a new output from a snapshot (starts='snapshot')"
        return "on_gap='snapshot' restarts from a new snapshot"

    @property
    def url(self) -> str:
        """The table's address as delta-rs takes it."""
        local = local_path_of(self.path)
        url = (local if local is not None else self.path).rstrip("/") or "/"
        return re.sub(r"^gcs://", "gs://", url)

    @property
    def name(self) -> str:
        """The table's name in messages."""
        return f"Delta table {self.address}"

    @property
    def address(self) -> str:
        """The table's address without credentials."""
        return shown_address(self.url)

    def redact(self, text: str) -> str:
        """Return *text* in one line, without values of the store's options and credentials."""
        for value in sorted(map(str, self.storage_options.values()), key=len, reverse=True):
            is_word = len(value) < _SHORTEST_SECRET or value.lower() in {"true", "false"}
            if not is_word and value not in self.url:
                text = text.replace(value, "***")
        return without_credentials(" ".join(_NOISE.sub("", text).split()))

    def to_spark(self) -> dict[str, str]:
        """Return the options as texts; `parse_options` reads them."""
        texts = {
            "path": self.path,
            "starts": _start_text(self.starts),
            "changes": self.changes,
            "columns": _json(self.columns) if self.columns is not None else None,
            "where": _json(self.where) if self.where else None,
            "onGap": self.on_gap,
            "maxFilesPerTrigger": str(self.max_files) if self.max_files else None,
            "maxRowsPerTrigger": str(self.max_rows) if self.max_rows else None,
            "secretStorageOptions": _json(self.storage_options) if self.storage_options else None,
        }
        return {name: text for name, text in texts.items() if text is not None}


def parse_options(given: Mapping[str, str]) -> TableOptions:
    """Read the options of the data source, whose names may be written in any case.

    Raises:
        ConfigError: one is unknown, missing or wrong; it is named, without a secret's value.
    """
    options = {key.lower(): str(value) for key, value in given.items()}
    for name in given:
        if name.lower() not in _OPTIONS and not name.lower().startswith(_INTERNAL):
            known = ", ".join(_OPTIONS.values())
            raise ConfigError(f"option {name}: {FORMAT} does not have it; it has {known}")
    columns = _list(options, "columns")
    return TableOptions(
        path=options.get("path", ""),
        starts=_start(options.get("starts", SNAPSHOT)),
        changes=options.get("changes"),
        columns=tuple(map(str, columns)) if columns is not None else None,
        where=parse_conditions(_list(options, "where") or ()),
        max_files=_number(options, "maxFilesPerTrigger"),
        max_rows=_number(options, "maxRowsPerTrigger"),
        on_gap=options.get("ongap"),
        storage_options=_secrets(options.get("secretstorageoptions", "{}")),
    )


def check_start(starts: Start) -> None:
    """Refuse an invalid start.

    Raises:
        ConfigError: it is not a word, version or time with its zone.
    """
    is_version = type(starts) is int and starts >= 0
    is_time = isinstance(starts, dt.datetime) and starts.tzinfo is not None
    if not is_version and not is_time and starts not in (SNAPSHOT, NOW):
        raise ConfigError(
            f"starts: {starts!r} is not a start; write {SNAPSHOT!r}, {NOW!r}, a version (0 or "
            "later), or a datetime with its zone"
        )


def _check_choice(name: str, value: str | None, *choices: str) -> None:
    if value not in (None, *choices):
        known = " or ".join(map(repr, choices))
        raise ConfigError(f"{name}: {value!r} is unknown; write {known}, or leave it out")


def _start_text(starts: Start) -> str:
    return starts.isoformat() if isinstance(starts, dt.datetime) else str(starts)


def _start(text: str) -> Start:
    if text.isdecimal():
        return int(text)
    if text in (SNAPSHOT, NOW):
        return text
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        return text  # which is refused with the others


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _list(options: Mapping[str, str], name: str) -> Sequence[Any] | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        value = read_json(text)
    except ValueError:
        value = None
    if not isinstance(value, list):
        example = '["id", "name"]' if name == "columns" else '[["day", ">=", "2024-05-01"]]'
        operators = "" if name == "columns" else f", with an operator of {', '.join(OPERATORS)}"
        raise ConfigError(f"option {name}: write a list in JSON, such as {example}{operators}")
    return value


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"option {name}: {text!r} is not a whole number of at least 1")
    return int(text)


def _secrets(text: str) -> dict[str, str]:
    try:
        value = read_json(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError("option secretStorageOptions: it is not a JSON object")
    return {str(key): str(each) for key, each in value.items()}
