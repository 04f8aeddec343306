"""``ends`` of ``ctx.read``: where a bounded source ends, as the job wants it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Final

from airflow_provider.runtime.checkpoint.source_end import is_by_partition
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.kafka_offsets import FORMAT, KAFKA_FORMATS
from airflow_provider.runtime.jobdir.read_range import FILE_FORMATS

LATEST: Final = "latest"
EndOption = str | dt.datetime | Mapping[str, Mapping[str, int]]

# What they answer when they are asked how far they reach is all there is.
_TELL_THEIR_END: Final = frozenset({"kafka", FORMAT, "rate", "rate-micro-batch"})
_KNOWN: Final = (
    "'latest', a datetime, or offsets from 0 on by topic and partition such as {'topic': {'0': 9}}"
)
_SHOWN_CHARS: Final = 60
_NO_PARTITIONS: Final = frozenset({*FILE_FORMATS, "rate", "rate-micro-batch", "socket"})


def check_end(
    name: str, source_format: str, ends: EndOption | None, *, bounded: bool, is_internal: bool
) -> EndOption | None:
    """Return where a source is to end, if it can end there.

    Raises:
        ConfigError: it cannot; the message names the source and the way out.
    """
    if ends is None:
        return None
    kind = source_format.lower()
    why = _refused(kind, ends)
    if is_internal:
        why = "it ends with the query of the job that writes it; leave ends out"
    if not bounded:
        why = f"ends={_shown(ends)} is of a source that ends; add bounded=True"
    if why is not None:
        msg = f"source {name!r} ({source_format}): {why}"
        raise ConfigError(msg)
    return ends


def _refused(kind: str, ends: object) -> str | None:
    """Return why a source of this format cannot end there; None when it can."""
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
    return None if is_known else f"ends={_shown(ends)} is not {_KNOWN}"


def tells_its_end(source_format: str, ends: EndOption | None) -> bool:
    """Whether what a source answers about its end is all that is there.

    One in Python may answer how far its next read goes; then its end is known when it has no more.
    """
    return ends is not None or source_format.lower() in _TELL_THEIR_END


def _are_offsets(ends: Mapping[Any, Any]) -> bool:
    """Whether these are offsets from the beginning on, and some."""
    plain = {topic: dict(p) if isinstance(p, Mapping) else p for topic, p in ends.items()}
    keys = [*plain, *(key for p in plain.values() if isinstance(p, dict) for key in p)]
    if not all(isinstance(key, str) for key in keys) or not is_by_partition(plain):
        return False
    numbers = [offset for partitions in plain.values() for offset in partitions.values()]
    return bool(numbers) and min(numbers) >= 0


def _shown(ends: object) -> str:
    text = ends.isoformat() if isinstance(ends, dt.datetime) else repr(ends)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
