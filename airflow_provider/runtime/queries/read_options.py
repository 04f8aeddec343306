"""Checks of ``ctx.read``'s options."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import parse_duration
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.queries.output_locations import location_key, reads_folder

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_provider.runtime.sources.declared import SourceDefinition

_FOLDER: Final = re.compile(r"[^*?\[{]+")
# Which files of the source's own folder are read, and what their folders' names mean.
_OF_THE_FOLDER: Final = frozenset({"basepath", "modifiedafter", "modifiedbefore", "pathglobfilter"})


def with_also(declared: SourceDefinition, also: str, written: Collection[str]) -> SourceDefinition:
    """Return a source that reads the folder *also*, too; *written* are the outputs of the job."""
    where = f"source {declared.name!r}: also={also!r}"
    files = declared.files
    if files is None or files.path is None:
        raise ConfigError(
            f"{where}: only files are read from two locations, and its format is {declared.kind!r}"
        )
    why = None
    if files.schema is None:
        why = "both locations need one schema; give schema=…"
    elif _FOLDER.fullmatch(also) is None:
        why = "it is to be a folder, and no pattern"
    elif location_key(also) in written:
        why = "a query of the job writes there; give a folder of corrected records"
    else:
        here, there = location_key(files.path), location_key(also)
        if reads_folder(here, there) or reads_folder(there, here):
            why = f"its files are read in {files.path} as well; give a folder beside that"
    if why is not None:
        raise ConfigError(f"{where}: {why}")
    corrected = dataclasses.replace(
        declared,
        name=f"{declared.name}.also",
        source=dataclasses.replace(
            files,
            path=also,
            may_be_missing=True,
            options={k: v for k, v in files.options.items() if k.lower() not in _OF_THE_FOLDER},
        ),
        is_internal=False,
        # Those of the source decide: its watermark is that of both, and a time that ends its files
        # may be before the time of the correction.
        watermark=None,
        idle_timeout_s=None,
        markers=None,
        ends=None,
    )
    return dataclasses.replace(declared, also=corrected)


_PARTS: Final = 2  # of a watermark


def check_watermark(source: str, given: Any) -> tuple[str, str] | None:
    """Return the column and the delay; a string alone would be read as many columns."""
    if given is None:
        return None
    parts = () if isinstance(given, str) else tuple(given)
    if len(parts) == _PARTS and all(isinstance(part, str) for part in parts):
        return parts
    raise ConfigError(
        f"source {source!r}: watermark={given!r} is no pair; write watermark=(COLUMN, DELAY), such "
        "as watermark=('ts', '10 minutes')"
    )


def check_idle_timeout(
    source: str, value: str | float | None, watermark: tuple[str, str] | None
) -> float | None:
    """Return the time in seconds, or raise ConfigError."""
    if value is None:
        return None
    seconds = parse_duration(value, name=f"source {source!r}: idle_timeout")
    if watermark is None or seconds == 0:
        raise ConfigError(
            f"source {source!r}: idle_timeout is a time in which its watermark may not advance, so "
            "it is more than 0 and needs watermark=(column, delay)"
        )
    return seconds
