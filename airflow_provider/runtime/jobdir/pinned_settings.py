"""Pinned settings: the first run of a job decides what its rows mean, and says so here.

Each document is put if absent under the lease, before the run's first query starts, and has only
names that no earlier one has: a later Spark knows more settings than the one before.

=====================================  ============================================================
a death                                the next start
=====================================  ============================================================
before ``settings/<n>.json``           pins its own values: no query has started
after it                               has the same values, or is refused
=====================================  ============================================================
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.base.names import numbers_in
from airflow_provider.runtime.base.typed_json import Address, IsoTime, Name, Positive
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.fixes import FROM_SCRATCH, set_conf, words
from airflow_provider.runtime.spark.row_settings import (
    ENVIRONMENT,
    LANGUAGE,
    conflicts,
    describe,
    is_same,
)
from airflow_provider.runtime.storage.documents import Contents, Document, Written

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.runtime.api.sinks import Fence
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.spark.row_settings import Value

log = logging.getLogger(__name__)

FOLDER: Final = "settings"
_SHOWN: Final = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class PinnedSettingsRecord(Document):
    """``settings/<number>.json``: Spark's settings that change what a row means, for all runs.

    Attributes:
        run_id: the run that had them first; None for a savepoint of no run.
        values: by name; None of a setting that had neither a value nor a default.
        savepoint: the savepoint of another job directory that they come from; None for this one's.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("settings/{number}.json",)
    WRITTEN = Written("once", "driver or restore, under its lease", "the next run pins its own")

    number: Positive
    run_id: Name | None
    values: dict[str, str | None]
    at: IsoTime
    savepoint: Address | None = None


@dataclasses.dataclass(frozen=True)
class Pins:
    """The pinned values by name, who has pinned each, in words, and the last document's number."""

    values: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    by: Mapping[str, str] = dataclasses.field(default_factory=dict)
    number: int = 0

    @classmethod
    def of(cls, values: Mapping[str, Value], run_id: str | None, savepoint: str | None) -> Pins:
        run = f"run {run_id!r}" if run_id is not None else "the job"
        who = f"{run} of the savepoint {savepoint}" if savepoint is not None else run
        return cls(dict(values), dict.fromkeys(values, who))

    def and_later(self, later: Pins, number: int) -> Pins:
        """Return these and those of a later document; of a name the earlier value counts."""
        return Pins({**later.values, **self.values}, {**later.by, **self.by}, number)

    def check(
        self, now: Mapping[str, Value], given: Mapping[str, str], usual: Mapping[str, Value]
    ) -> None:
        """Refuse to start queries with other values than the pinned ones; pure.

        Args:
            now: the session's values when the job's function has returned.
            given: those that the run or Spark's configuration gives.
            usual: the session's values before the pinned ones were set.
        """
        found = conflicts(self.values, now, usual)
        if not found:
            return
        more = f", and {len(found) - _SHOWN} more settings" if len(found) > _SHOWN else ""
        said = "; ".join(self._conflict(n, now, given) for n in found[:_SHOWN])
        raise ConfigError(
            f"{said}{more}. Rows before and after would not mean the same: give the values that "
            f"the job began with ({self._fix(found[0])}), or {FROM_SCRATCH}"
        )

    def _conflict(self, name: str, now: Mapping[str, Value], given: Mapping[str, str]) -> str:
        is_given = name in given and is_same(given[name], now[name])
        is_hosts = name in {LANGUAGE, *ENVIRONMENT}
        by = words()["CONF"] if is_given else "of this host" if is_hosts else "the job sets it"
        return f"{name}={now[name]} ({by}), and {self.by[name]} began with {self.values[name]}"

    def _fix(self, name: str) -> str:
        value = self.values[name]
        if value is None:
            return "leave the setting out"
        if name == LANGUAGE:
            return set_conf("spark.driver.extraJavaOptions", f"-D{name}={value}")
        if name in ENVIRONMENT:
            return f"set {name}={value}; this host has no data of such a time zone, see tzdata"
        return set_conf(name, value)


def read_pins(storage: Storage) -> Pins:
    """Return the pinned settings of a job directory; of a name the first one counts."""
    pins = Pins()
    for number in numbers_in(storage.list(FOLDER), ".json"):
        record = PinnedSettingsRecord.read(storage, f"{FOLDER}/{number}.json")
        if record is not None:
            pins = pins.and_later(Pins.of(record.values, record.run_id, record.savepoint), number)
    return pins


def pin_settings(
    storage: Storage,
    before: Pins,
    values: Mapping[str, Value],
    lease: Fence,
    clock: Clock,
    *,
    run_id: str | None,
    savepoint: str | None = None,
) -> Pins:
    """Pin those values of which the job directory has none, under the lease. Idempotent.

    Args:
        storage: the job directory.
        before: what :func:`read_pins` has found there under the lease.
        values: the values of the run that begins, or of the savepoint that is restored.
        lease: the caller's.
        clock: for the record's time.
        run_id: the run that has the values.
        savepoint: the savepoint of another job directory that they come from, if any.

    Returns:
        The pins of the job directory now.

    Raises:
        LeaseLostError: another driver has taken over.

    Crash safety: one document, put if absent; the next start puts it if it is missing.
    """
    new = {name: value for name, value in values.items() if name not in before.values}
    if not new:
        return before
    record = PinnedSettingsRecord(
        number=before.number + 1,
        run_id=run_id,
        values=new,
        at=to_iso(clock.now()),
        savepoint=savepoint,
    )
    lease.check()
    path = f"{FOLDER}/{record.number}.json"
    if not record.put_if_absent(storage, path):
        lease.check()  # only a later driver puts another one
    failpoints.hit("settings.pinned")
    log.info("run=%s pins %s for the job's later runs (%s)", run_id, describe(new), path)
    return before.and_later(Pins.of(new, run_id, savepoint), record.number)
