"""Rewrite of a savepoint: a new one from an existing one, with changes; never in place.

The savepoint is restored into a folder beside the new one, as into a job directory, and changed
there; then a savepoint is taken of it, as of any job. The folder is claimed meanwhile. A folder
whose owner died is no savepoint, and the same command starts again.

=====================================  =============================================================
a crash                                the same command
=====================================  =============================================================
until the new savepoint is put         removes the remains, and starts again with ``savepoint.json``
put            is refused, since the savepoint exists; retention collects
                                       the rest as garbage
=====================================  =============================================================
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.state_rewrite.dropped_operators import (
    drop_operators,
    fingerprint_without,
    topology_without,
)
from airflow_provider.extensions.state_rewrite.rewrite_plan import (
    Changes,
    QueryPlan,
    RewritePlan,
    plan_changes,
)
from airflow_provider.extensions.state_rewrite.rewrite_rows import (
    Chooser,
    Deleted,
    QueryRows,
)
from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import Clock, SystemClock
from airflow_provider.runtime.base.names import check_name
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.offsets import reset_positions, set_positions
from airflow_provider.runtime.checkpoint.source_end import NO_OFFSET
from airflow_provider.runtime.errors import ConfigError, refusing
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.query_records import (
    kept_fingerprint,
    kept_topology,
    put_topology,
)
from airflow_provider.runtime.jobdir.source_identities import forget_identities
from airflow_provider.runtime.queries.spark_state import spark_repartition
from airflow_provider.runtime.savepoints.catalog import (
    Savepoint,
    check_repartitionable,
    check_restorable,
    open_savepoint,
    partitions_of,
)
from airflow_provider.runtime.savepoints.checkpoint_source import Source, SourceQuery
from airflow_provider.runtime.savepoints.record import (
    MANIFEST,
    TAKE,
    check_claimable,
    claim,
    is_held,
    release,
)
from airflow_provider.runtime.savepoints.restore import Restore
from airflow_provider.runtime.savepoints.restore_plan import RestoreSettings
from airflow_provider.runtime.savepoints.retention import pinned_savepoint
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.spark.session import using_spark
from airflow_provider.runtime.spark.versions import Ability, check_can
from airflow_provider.runtime.storage.file_tree import remove_if_empty, remove_tree
from airflow_provider.runtime.storage.open import has_escapes, open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.api.storages import Storage

log = logging.getLogger(__name__)

ORIGIN: Final = "rewrite"
_FROM: Final = "rewritten-from"
_SCRATCH: Final = ".rewriting"
_WORK: Final = "queries"
"""The files that garbage collection removes from a folder that is no savepoint."""


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """The new savepoint, or with a dry run the planned one."""

    plan: RewritePlan
    deleted: Mapping[str, list[Deleted]]
    savepoint: Savepoint | None

    def to_dict(self) -> dict[str, Any]:
        made = self.savepoint
        return {
            "version": 1,
            **self.plan.to_dict(),
            "deleted": {n: [dataclasses.asdict(d) for d in ds] for n, ds in self.deleted.items()},
            "made": {**made.record.to_dict(), "url": made.url} if made is not None else None,
        }


def rewrite_savepoint(
    url: str,
    to: str,
    changes: Changes,
    *,
    dry_run: bool = False,
    conf: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    clock: Clock | None = None,
) -> Rewritten:
    """Make a new savepoint of an existing one, with changes.

    Args:
        url: the existing one, which does not change.
        to: the new one's own folder, which must not exist.
        changes: the requested changes.
        dry_run: only plan. To count keys the savepoint is copied for that time, by links where that
            is possible.
        conf: Spark configuration, where Spark is needed.
        spark: a session whose JVM is used and left running; None to start Spark if it is needed.
        clock: time; None for the machine's.

    Raises:
        UnknownJobError: no such savepoint.
        ConfigError: a named thing is missing, cannot be changed, or would not change; or the new
            folder is taken. Nothing is left.
        JobDrainedError, RefusedCheckpointError: the savepoint cannot be restored.
        CheckpointError: Spark could not rewrite the state. Nothing is left.

    Crash safety: the new savepoint is complete or does not exist; the same call removes the
    remains.
    """
    clock = clock or SystemClock()
    savepoint = open_savepoint(url)
    check_restorable(savepoint)
    others = {other: open_savepoint(other) for other in changes.replace.values()}
    plan = plan_changes(savepoint, changes, others)
    target = open_storage(to)
    check_name(target.url.rpartition("/")[2], what="savepoint")
    _check_target(target, [savepoint, *others.values()], needs_spark=plan.needs_spark)
    _check_partitions(savepoint, plan, changes)
    for other in others.values():
        check_restorable(other)
    if dry_run and changes.delete_keys is None:
        return Rewritten(plan, {}, None)
    with _session(plan, conf, spark) as session, _scratch(f"{target.url}{_SCRATCH}", clock) as root:
        work = _Work(root, savepoint, plan, others=others, spark=session, clock=clock)
        work.unfold(spread=not dry_run)
        deleted = work.check_rows(changes)
        if dry_run:
            return Rewritten(plan, deleted, None)
        work.change()
        failpoints.hit("rewrite.changed")
        labels = {**savepoint.record.labels, _FROM: savepoint.url}
        made = take_savepoint(work.source(), target.url, origin=ORIGIN, labels=labels)
    return Rewritten(plan, deleted, made)


def _check_target(target: Storage, savepoints: Sequence[Savepoint], *, needs_spark: bool) -> None:
    if target.exists(MANIFEST):
        raise ConfigError(f"{target.url}: there is a savepoint of this name; choose another one")
    if needs_spark and has_escapes(target.url):
        raise ConfigError(
            f"{target.url}: Spark cannot change state at an address with letters that a URI must "
            "escape, such as spaces; choose another folder"
        )
    for savepoint in savepoints:
        if target.url.startswith(f"{savepoint.url}/"):
            raise ConfigError(
                f"{target.url}: lies in the savepoint {savepoint.url}; choose another folder"
            )


def _check_partitions(savepoint: Savepoint, plan: RewritePlan, changes: Changes) -> None:
    if changes.partitions is None:
        return
    names = [query.source for query in plan.queries if query.partitions is not None]
    check_repartitionable(savepoint, names or [query.source for query in plan.queries])
    if all(partitions_of(savepoint, name) == changes.partitions for name in names):
        raise ConfigError(
            f"{savepoint.url}: nothing would change: the state is spread over "
            f"{changes.partitions} partitions already"
        )


@contextlib.contextmanager
def _scratch(url: str, clock: Clock) -> Iterator[str]:
    location = open_storage(url)
    with refusing(url, "written"):
        check_claimable(location, location.list(""))
        mine = claim(location, TAKE, clock)
        location.delete(_WORK)
    failpoints.hit("rewrite.claimed")
    try:
        yield f"{location.url}/{_WORK}"
    finally:
        with contextlib.suppress(OSError):  # it is garbage that retention collects
            if is_held(location, mine):
                remove_tree(location.at(_WORK))
                release(location)
                remove_if_empty(location.url)


@contextlib.contextmanager
def _session(
    plan: RewritePlan, conf: Mapping[str, str] | None, spark: SparkSession | None
) -> Iterator[SparkSession | None]:
    if not plan.needs_spark:
        yield None
        return
    with using_spark(spark, f"spark-stream rewrite {plan.savepoint}", None, conf) as session:
        if any(query.rewrites_rows for query in plan.queries):
            check_can(session, Ability.REWRITE)
        yield session


class _Work:
    def __init__(
        self,
        root: str,
        savepoint: Savepoint,
        plan: RewritePlan,
        *,
        others: Mapping[str, Savepoint],
        spark: SparkSession | None,
        clock: Clock,
    ) -> None:
        self._savepoint = savepoint
        self._plan = plan
        self._others = others
        self._spark = spark
        self._clock = clock
        self._directory = JobDirectory(open_storage(f"{root}/new"))
        self._theirs = {
            url: JobDirectory(open_storage(f"{root}/other-{number}"))
            for number, url in enumerate(others)
        }
        self._rows: dict[str, QueryRows] = {}

    def unfold(self, *, spread: bool) -> None:
        asked = (query.partitions for query in self._plan.queries if query.partitions)
        with contextlib.ExitStack() as stack:
            for url in (self._savepoint.url, *self._theirs):
                stack.enter_context(pinned_savepoint(url, self._clock))
            for url, directory in self._theirs.items():
                other = self._others[url]
                self._restore(directory, other, {name: name for name in other.record.queries}, None)
            names = {query.name: query.source for query in self._plan.queries}
            partitions = next(asked, None) if spread else None
            self._restore(self._directory, self._savepoint, names, partitions)

    def _restore(
        self,
        directory: JobDirectory,
        savepoint: Savepoint,
        names: Mapping[str, str],
        partitions: int | None,
    ) -> None:
        fence, clock = OpenFence(), self._clock  # a scratch folder, which nobody else knows
        spread = None
        if partitions is not None and self._spark is not None:
            spread = spark_repartition(self._spark)
        Restore(directory, fence, clock).run(
            RestoreSettings(savepoint, names, partitions=partitions), spread
        )

    def check_rows(self, changes: Changes) -> dict[str, list[Deleted]]:
        if self._spark is None:
            return {}
        chooser = None
        if changes.delete_keys is not None:
            file = changes.key_file
            chooser = Chooser(None if file else changes.delete_keys, file)
        for query in self._plan.queries:
            if query.rewrites_rows:
                location = self._directory.checkpoint(query.name)
                theirs = {
                    number: self._theirs[other.savepoint].checkpoint(other.query)
                    for number, other in query.replaced.items()
                }
                self._rows[query.name] = QueryRows(self._spark, location, query, chooser, theirs)
        for rows in self._rows.values():
            rows.check_replaced()
        deleted = {name: found for name, r in self._rows.items() if (found := r.count_deleted())}
        if chooser is not None and not any(d.keys for found in deleted.values() for d in found):
            raise ConfigError(self._no_key(changes, deleted))
        return deleted

    def _no_key(self, changes: Changes, deleted: Mapping[str, list[Deleted]]) -> str:
        there = "; ".join(
            f"operator {each.operator} of query {name!r} has {', '.join(each.columns) or 'none'}"
            for name, found in deleted.items()
            for each in found
        )
        return (
            f"{self._savepoint.url}: nothing would change: no key is one of "
            f"{changes.delete_keys}. The columns of the keys: {there}"
        )

    def change(self) -> None:
        for query in self._plan.queries:
            if query.name in self._rows:
                self._rows[query.name].rewrite()
            checkpoint = self._directory.checkpoint(query.name)
            if query.dropped:
                self._drop(query)
            reset = [position for position, line in query.lines.items() if line == NO_OFFSET]
            topology = kept_topology(self._directory, query.name)
            names = topology.sources if topology is not None else ()
            reset_positions(checkpoint, reset, names)
            elsewhere = {
                position: line for position, line in query.lines.items() if line != NO_OFFSET
            }
            set_positions(checkpoint, elsewhere, names)
            self._forget_identities(query)

    def _forget_identities(self, query: QueryPlan) -> None:
        """A position that the caller gives is of what the source reads when it is used."""
        topology = kept_topology(self._directory, query.name)
        names = dict(enumerate(topology.sources if topology is not None else ()))
        moved = [str(names[position]) for position in query.lines if position in names]
        forget_identities(self._directory, query.name, moved)

    def _drop(self, query: QueryPlan) -> None:
        checkpoint = self._directory.checkpoint(query.name)
        query_id = CheckpointLogs(checkpoint).query_id()
        before = kept_topology(self._directory, query.name)
        made = kept_fingerprint(self._directory, query.name)
        drop_operators(checkpoint, query.dropped)
        if before is not None and query_id is not None:
            topology = topology_without(before, query.dropped)
            fingerprint = fingerprint_without(made, query.dropped) if made is not None else None
            put_topology(self._directory, query.name, query_id, topology, fingerprint, replace=True)

    def source(self) -> Source:
        record = self._savepoint.record
        queries = []
        for query in self._plan.queries:
            checkpoint, saved = self._directory.checkpoint(query.name), record.queries[query.source]
            added = CheckpointLogs(checkpoint).position().last_commit - saved.batch
            queries.append(
                SourceQuery(
                    query.name,
                    checkpoint,
                    self._directory,
                    administrative=saved.administrative + added,
                    history=tuple(saved.history),
                )
            )
        return Source(
            self._savepoint.url,
            record.job,
            record.run_id,
            tuple(queries),
            is_driven=lambda: False,
            restores=record.restores,
            token=record.token,
            lineage=tuple(record.lineage),
            settings=record.settings,
        )
