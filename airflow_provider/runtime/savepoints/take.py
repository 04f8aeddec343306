"""Takes a savepoint, from anywhere that reaches the storage, without Spark and without a pause.

A checkpoint's files never change once their batch has committed; Spark only adds and removes. So a
savepoint is a choice of a batch and a copy of the files it needs: hard links on a local filesystem,
copies made by the store itself in a bucket. When Spark removes one of them meanwhile, a newer batch
is taken.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import Clock, SystemClock, millis_to_iso, to_iso
from airflow_provider.runtime.base.names import check_name
from airflow_provider.runtime.checkpoint.drain_step import is_of_drain
from airflow_provider.runtime.checkpoint.source_end import offset_value
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    MissingStateError,
    SavepointError,
    refusing,
)
from airflow_provider.runtime.savepoints.catalog import VERIFIED_BYTES, Savepoint, find_damage
from airflow_provider.runtime.savepoints.checkpoint_copies import (
    copy_needed,
    list_needed,
    readdressed,
)
from airflow_provider.runtime.savepoints.checkpoint_source import NothingYet, Take, choose
from airflow_provider.runtime.savepoints.record import (
    MANIFEST,
    TAKE,
    QuerySavepoint,
    SavedFile,
    SavepointClaimRecord,
    SavepointRecord,
    check_claimable,
    check_origin,
    claim,
    is_held,
    release,
    withdraw,
    without_checksums,
    working_under,
)
from airflow_provider.runtime.savepoints.retention import SharedFiles, shared_files_beside
from airflow_provider.runtime.storage.file_tree import remove_if_empty, remove_tree
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.checkpoint.inventory import Inventory
    from airflow_provider.runtime.savepoints.checkpoint_source import Source, SourceQuery
    from airflow_provider.runtime.storage.file_tree import FileFacts

log = logging.getLogger(__name__)
T = TypeVar("T")

ALIGNED_TIMEOUT_S: Final = 30.0
_TRIES: Final = 5  # races with Spark's cleaning that are lost before it is given up
_POLL_S: Final = 0.05


def take_savepoint(
    source: Source,
    url: str,
    *,
    origin: str = "manual",
    labels: Mapping[str, str] | None = None,
    aligned_timeout_s: float = ALIGNED_TIMEOUT_S,
    verified_bytes: int = VERIFIED_BYTES,
    clock: Clock | None = None,
) -> Savepoint:
    """Take a savepoint of a running, suspended or foreign query or job.

    Args:
        source: from :func:`~.checkpoint_source.job_source` or
            :func:`~.checkpoint_source.checkpoint_source`.
        url: the savepoint's own folder, which must not exist; its last part is the name.
        origin: one of :data:`~.record.ORIGINS`.
        labels: free words to find it by.
        aligned_timeout_s: how long to wait for a batch in flight; then the savepoint is unaligned.
        verified_bytes: how many bytes may be read again to compare Spark's checksums, smallest
            files first; sizes are compared for all.
        clock: time; None for the machine's.

    Raises:
        ConfigError: the folder is taken, the name is invalid, no batch has committed yet, or a
            right is missing.
        CheckpointError: the checkpoint lacks files, or they are damaged.
        SavepointError: Spark removed files in each try, the job was restored meanwhile, or another
            process presumed this one dead or uses the folder.

    Crash safety: without ``savepoint.json``, which is written last, there is no savepoint; the next
    retention, or the next taker of the same name, removes the copies.
    """
    check_origin(origin)
    clock = clock or SystemClock()
    target = open_storage(url)
    name = check_name(target.url.rpartition("/")[2], what="savepoint")
    taker = _Taker(source, target, clock, aligned_timeout_s, verified_bytes)
    with refusing(source.url, "read"):
        taker.check()
    with contextlib.ExitStack() as working:
        with refusing(target.url, "written"):
            mine = _claim_empty(target, clock, working)
        try:
            record = dataclasses.replace(
                _record(source, taker.take(), clock),
                name=name,
                origin=origin,
                labels=dict(labels or {}),
                restores=source.restores,
                token=source.token,
                beside=taker.shared.savepoints,
                lineage=[*source.lineage],
                settings={**source.settings},
            )
            failpoints.hit("savepoint.copied")
            _complete(target, mine, record)
        except BaseException:
            _give_up(target, mine)
            raise
        failpoints.hit("savepoint.put")
        release(target)
    return Savepoint(target.url, record)


def describe_source(source: Source, clock: Clock) -> SavepointRecord:
    """Return the record of a savepoint of *source* taken now, without its files. Only reads."""
    with refusing(source.url, "read"):
        queries = _Taker(source, open_storage(source.url), clock, 0.0, 0).describe()
    return _record(source, queries, clock)


def _record(source: Source, queries: dict[str, QuerySavepoint], clock: Clock) -> SavepointRecord:
    return SavepointRecord(
        name="described",
        origin="manual",
        labels={},
        job=source.job,
        run_id=source.run_id,
        source=source.url,
        queries=queries,
        taken=to_iso(clock.now()),
    )


def _claim_empty(
    target: Storage, clock: Clock, working: contextlib.ExitStack
) -> SavepointClaimRecord:
    names = target.list("")
    if MANIFEST in names:
        raise _taken(target)
    check_claimable(target, names)
    mine = claim(target, TAKE, clock)
    working.enter_context(working_under(mine.nonce))
    if target.exists(MANIFEST):  # it was completed since the look
        withdraw(target, mine)
        raise _taken(target)
    failpoints.hit("savepoint.claimed")
    if "queries" in names:
        remove_tree(target.at("queries"))
    return mine


def _taken(target: Storage) -> ConfigError:
    msg = f"{target.url}: there is a savepoint of this name; choose another one"
    return ConfigError(msg)


def _complete(target: Storage, mine: SavepointClaimRecord, record: SavepointRecord) -> None:
    if not is_held(target, mine) or not record.put_if_absent(target, MANIFEST):
        raise _overtaken(target)
    try:
        _check_complete(target, mine, record)
    except BaseException:
        # While it exists no other process completes one here, so it is this one's.
        target.delete(MANIFEST)
        raise


def _check_complete(target: Storage, mine: SavepointClaimRecord, record: SavepointRecord) -> None:
    for name, query in record.queries.items():
        if damage := find_damage(target, name, query, verified_bytes=0):
            raise CheckpointError(damage[0])
    if not is_held(target, mine):
        raise _overtaken(target)


def _overtaken(target: Storage) -> SavepointError:
    msg = (
        f"{target.url}: another process has claimed the folder meanwhile, and may have removed "
        "what was copied; take the savepoint again"
    )
    return SavepointError(msg)


def _give_up(target: Storage, mine: SavepointClaimRecord) -> None:
    try:
        if not is_held(target, mine):
            log.warning("%s: left, because another process has claimed it meanwhile", target.url)
            return
        target.delete(MANIFEST)  # put, and the answer lost
        remove_tree(target.at("queries"))
        release(target)
        remove_if_empty(target.url)
    except OSError as error:
        log.warning("%s: could not be removed: %s", target.url, error)


class _Listed(NamedTuple):
    query_id: str
    choice: Take
    inventory: Inventory
    found: Mapping[str, FileFacts]


@dataclasses.dataclass
class _Taker:
    source: Source
    target: Storage
    clock: Clock
    aligned_timeout_s: float
    verified_bytes: int
    shared: SharedFiles = dataclasses.field(default_factory=SharedFiles)
    checked: dict[str, _Listed] = dataclasses.field(default_factory=dict)

    def check(self) -> None:
        for query in self.source.queries:
            self.checked[query.name] = self._until_complete(query, self._inventory, 0.0)

    def describe(self) -> dict[str, QuerySavepoint]:
        self.check()
        return {
            query.name: _describe(query, seen.query_id, seen.choice, seen.inventory, [])
            for query in self.source.queries
            for seen in (self.checked[query.name],)
        }

    def take(self) -> dict[str, QuerySavepoint]:
        """Take downstream queries first: none has read what its upstream's copy lacks."""
        self.shared = shared_files_beside(self.target, self.clock)
        taken = {
            query.name: self._until_complete(query, self._copy, self.aligned_timeout_s)
            for query in reversed(self.source.queries)
        }
        self.source.check_current()
        return {query.name: taken[query.name] for query in self.source.queries}

    def _until_complete(
        self,
        query: SourceQuery,
        act: Callable[[SourceQuery, Take, str], T],
        aligned_timeout_s: float,
    ) -> T:
        """Call *act* on a batch, and on a newer one when Spark has removed files meanwhile.

        If the checkpoint was replaced meanwhile, two histories with the same file names could mix:
        it is read again. The checkpoint's id is removed first, and written last.
        """
        lost: MissingStateError | None = None
        before = -1
        for _ in range(_TRIES):
            self.source.check_current()
            query_id = str(query.logs.query_id())
            choice = self._choose(query, aligned_timeout_s)
            if lost is not None and choice.batch <= before:
                raise lost
            try:
                made = act(query, choice, query_id)
            except MissingStateError as error:
                log.info("%s: batch %s: %s", query.checkpoint.url, choice.batch, error)
                lost, before = error, choice.batch
                continue
            if str(query.logs.query_id()) == query_id:
                return made
            log.info("%s: was replaced while it was read", query.checkpoint.url)
            lost, before = None, -1
        raise SavepointError(
            f"{query.checkpoint.url}: Spark removed files {_TRIES} times while they were copied "
            f"(last: {lost}); let it keep more batches: spark.sql.streaming.minBatchesToRetain"
        ) from lost

    def _choose(self, query: SourceQuery, aligned_timeout_s: float) -> Take:
        began = self.clock.monotonic()
        first = now = self.source.poll(query)
        while True:
            choice = choose(
                first,
                now,
                waited_s=self.clock.monotonic() - began,
                aligned_timeout_s=aligned_timeout_s,
            )
            if isinstance(choice, Take):
                return choice
            if isinstance(choice, NothingYet):
                raise _nothing_yet(query, now.position.last_commit)
            self.clock.sleep(_POLL_S)
            now = self.source.poll(query)

    def _inventory(self, query: SourceQuery, choice: Take, query_id: str) -> _Listed:
        inventory, found = list_needed(query.checkpoint, choice.batch, planned=choice.planned)
        return _Listed(query_id, choice, inventory, found)

    def _copy(self, query: SourceQuery, choice: Take, query_id: str) -> QuerySavepoint:
        checked = self.checked.pop(query.name, None)
        if checked is not None and (checked.choice, checked.query_id) == (choice, query_id):
            with contextlib.suppress(MissingStateError):  # another list may do without what is gone
                return self._copy_listed(query, checked)
        return self._copy_listed(query, self._inventory(query, choice, query_id))

    def _copy_listed(self, query: SourceQuery, listed: _Listed) -> QuerySavepoint:
        folder = self._folder_of(query)
        remove_tree(folder)  # what a lost race has left
        query_id, choice, inventory, found = listed
        shared = self.shared.where(query_id, inventory.files, found)
        rewritten = {
            **readdressed(query.checkpoint, inventory, folder),
            **query.replaced_logs(choice.batch),
        }
        left_out = without_checksums(rewritten)
        kept = [file for file in shared if file.path not in left_out]
        own = [(file.path, file.size) for file in kept if file.holder is None]
        copy_needed(query.checkpoint, folder, own, rewritten, batch=choice.batch)
        failpoints.hit("savepoint.copied_one")
        files = sorted([*kept, *(SavedFile(path, len(data)) for path, data in rewritten.items())])
        made = _describe(query, query_id, choice, inventory, files)
        damage = find_damage(self.target, query.name, made, self.verified_bytes, just_copied=True)
        if damage:
            raise CheckpointError(damage[0])
        return made

    def _folder_of(self, query: SourceQuery) -> Storage:
        return self.target.at(f"queries/{query.name}")


def _describe(
    query: SourceQuery, query_id: str, choice: Take, inventory: Inventory, files: list[SavedFile]
) -> QuerySavepoint:
    entry = query.logs.offsets(choice.batch)
    before = query.ended_by(choice.batch)
    topology = query.topology(entry)
    drained = is_of_drain(entry.watermark_ms)
    ended = query.has_ended(choice.batch + choice.planned)
    finished = ended and not choice.planned and (drained or not inventory.operators)
    finish_states = query.finish_states(
        topology, choice.batch, ended=ended, drained=drained, finished=finished
    )
    shapes = {operator.id: operator for operator in topology.operators or ()}
    return QuerySavepoint(
        query_id=query_id,
        batch=choice.batch,
        planned=choice.planned,
        watermark=millis_to_iso(entry.watermark_ms),
        drained=drained,
        sources=[offset_value(line) for line in entry.lines_of(topology.sources)],
        operators=[
            {
                "id": operator.id,
                "name": topology.kind_of(operator.id, operator.name),
                "partitions": operator.partitions,
                "provider": operator.provider.value,
                "job_name": shapes[operator.id].name if operator.id in shapes else None,
                "sources": shapes[operator.id].sources if operator.id in shapes else None,
                "keys": shapes[operator.id].keys if operator.id in shapes else None,
                "finish_state": finish_states.of_operator(operator.id).value,
            }
            for operator in inventory.operators
        ],
        addressed=list(inventory.addressed),
        files=tuple(files),
        finished=finished,
        ended=before.sources if before else [],
        reached=before.reached if before else {},
        source_finish_states=finish_states.described_sources(),
        administrative=query.administrative,
        history=list(query.history),
        fingerprint=query.fingerprint(choice.batch),
        identities=query.identities(choice.batch, topology),
        named=topology.is_named,
        kinds=dict(topology.kinds),
        removed=list(topology.removed),
    )


def _nothing_yet(query: SourceQuery, last_commit: int) -> ConfigError:
    where = query.checkpoint.url
    if last_commit < 0:
        msg = f"{where}: no batch of query {query.name!r} has committed yet; try again later"
        return ConfigError(msg)
    msg = (
        f"{where}: what query {query.name!r} has written is not published, and no driver is alive "
        "to do it; run 'spark-stream cleanup JOB_DIR' or resume the run first"
    )
    return ConfigError(msg)
