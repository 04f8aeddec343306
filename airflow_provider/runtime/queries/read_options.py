"""Checks of ``ctx.read``'s options."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import parse_duration
from airflow_provider.runtime.checkpoint.source_end import is_by_partition
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.datasets import FILE_FORMATS, FORMAT, KAFKA_FORMATS
from airflow_provider.runtime.queries.output_locations import location_key, reads_folder
from airflow_provider.runtime.queries.source import LATEST, MODIFIED, NAME, EndOption

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow_provider.runtime.queries.source import SourceDefinition

# What they answer when they are asked how far they reach is all there is.
_TELL_THEIR_END: Final = frozenset({"kafka", FORMAT, "rate", "rate-micro-batch"})
_KNOWN_ENDS: Final = (
    "'latest', a datetime, or offsets from 0 on by topic and partition such as {'topic': {'0': 9}}"
)
_SHOWN_CHARS: Final = 60
_NO_PARTITIONS: Final = frozenset({*FILE_FORMATS, "rate", "rate-micro-batch", "socket"})


def check_end(
    name: str, source_format: str, ends: EndOption | None, *, bounded: bool, is_internal: bool
) -> EndOption | None:
    """Return *ends*, if the source can end there."""
    if ends is None:
        return None
    kind = source_format.lower()
    why = _refused(kind, ends)
    if is_internal:
        why = "it ends with the query of the job that writes it; leave ends out"
    if not bounded:
        why = f"ends={_shown(ends)} is of a source that ends; add bounded=True"
    if why is not None:
        raise ConfigError(f"source {name!r} ({source_format}): {why}")
    return ends


def _refused(kind: str, ends: object) -> str | None:
    if isinstance(ends, dt.datetime):
        if kind not in {*FILE_FORMATS, *KAFKA_FORMATS}:
            return "only files and Kafka end at a time; give offsets, or ends='latest'"
        return None if ends.tzinfo is not None else f"ends={_shown(ends)} needs a time zone"
    if isinstance(ends, Mapping):
        if kind in _NO_PARTITIONS:
            return "it has no topics and partitions; leave ends out"
        is_known = _are_offsets(ends)
    else:
        is_known = ends == LATEST
    return None if is_known else f"ends={_shown(ends)} is not {_KNOWN_ENDS}"


def tells_its_end(source_format: str, ends: EndOption | None) -> bool:
    """Whether a source reports the end of all its input."""
    return ends is not None or source_format.lower() in _TELL_THEIR_END


def _are_offsets(ends: Mapping[Any, Any]) -> bool:
    plain = {topic: dict(p) if isinstance(p, Mapping) else p for topic, p in ends.items()}
    keys = [*plain, *(key for p in plain.values() if isinstance(p, dict) for key in p)]
    if not all(isinstance(key, str) for key in keys) or not is_by_partition(plain):
        return False
    numbers = [offset for partitions in plain.values() for offset in partitions.values()]
    return bool(numbers) and min(numbers) >= 0


def _shown(ends: object) -> str:
    text = ends.isoformat() if isinstance(ends, dt.datetime) else repr(ends)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


READ_ORDERS: Final = (MODIFIED, NAME)

_CONTRARY: Final = frozenset({"latestfirst", "maxfileage"})


def check_read_order(
    name: str, source_format: str, order: str, options: Mapping[str, str], *, bounded: bool
) -> str:
    """Return *order*, if the source can be read in it."""
    where = f"source {name!r} ({source_format}): read_order={order!r}"
    if order not in READ_ORDERS:
        raise ConfigError(f"{where}: use one of {', '.join(repr(each) for each in READ_ORDERS)}")
    if order == MODIFIED:
        return order
    contrary = [key for key in options if key.lower() in _CONTRARY]
    why = None
    if source_format.lower() not in FILE_FORMATS:
        why = "only files have names; leave it out"
    elif not bounded:
        why = "only of a source that ends all files are known at once; add bounded=True"
    elif contrary:
        why = f"it goes by names alone; leave option {contrary[0]} out"
    if why is not None:
        raise ConfigError(f"{where}: {why}")
    return order


_FOLDER: Final = re.compile(r"[^*?\[{]+")
# Which files of the source's own folder are read, and what their folders' names mean.
_OF_THE_FOLDER: Final = frozenset({"basepath", "modifiedafter", "modifiedbefore", "pathglobfilter"})


def with_also(declared: SourceDefinition, also: str, written: Collection[str]) -> SourceDefinition:
    """Return a source that reads the folder *also*, too; *written* are the outputs of the job."""
    where = f"source {declared.name!r}: also={also!r}"
    why = None
    if declared.format.lower() not in FILE_FORMATS or declared.path is None:
        why = f"only files are read from two locations, and its format is {declared.format!r}"
    elif declared.schema is None:
        why = "both locations need one schema; give schema=…"
    elif _FOLDER.fullmatch(also) is None:
        why = "it is to be a folder, and no pattern"
    elif location_key(also) in written:
        why = "a query of the job writes there; give a folder of corrected records"
    else:
        here, there = location_key(declared.path), location_key(also)
        if reads_folder(here, there) or reads_folder(there, here):
            why = f"its files are read in {declared.path} as well; give a folder beside that"
    if why is not None:
        raise ConfigError(f"{where}: {why}")
    corrected = dataclasses.replace(
        declared,
        name=f"{declared.name}.also",
        path=also,
        may_be_missing=True,
        is_internal=False,
        options={k: v for k, v in declared.options.items() if k.lower() not in _OF_THE_FOLDER},
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
