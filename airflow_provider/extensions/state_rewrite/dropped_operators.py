"""Removal of stateful operators from a checkpoint and its stored topology."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.base.names import numbers_in
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs, with_state_ids
from airflow_provider.runtime.checkpoint.operators import (
    SCHEMA_FILES,
    OperatorMetadata,
    changed_metadata,
)
from airflow_provider.runtime.storage.copy_files import copy_files
from airflow_provider.runtime.storage.file_tree import files_under

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.checkpoint.topology import Fingerprint, Topology


def _renumbered(data: bytes, number: int, *, where: str) -> bytes:
    before = OperatorMetadata.parse(data, where=where).id

    def change(document: dict[str, Any]) -> None:
        document["operatorInfo"]["operatorId"] = number
        old, new = f"/state/{before}/", f"/state/{number}/"
        for store in document["stateStoreInfo"]:
            if SCHEMA_FILES in store:
                store[SCHEMA_FILES] = [new.join(p.rsplit(old, 1)) for p in store[SCHEMA_FILES]]

    return changed_metadata(data, change, where=where)


def _numbers_after(numbers: Collection[int], dropped: Collection[int]) -> dict[int, int]:
    stay = sorted(set(numbers) - set(dropped))
    return {old: old - sum(gone < old for gone in dropped) for old in stay}


def topology_without(topology: Topology, dropped: Collection[int]) -> Topology:
    """Return a query's topology without some of its operators."""
    if topology.operators is None:
        return topology
    new = _numbers_after([operator.id for operator in topology.operators], dropped)
    operators = tuple(o._replace(id=new[o.id]) for o in topology.operators if o.id in new)
    return dataclasses.replace(topology, operators=operators)


def fingerprint_without(fingerprint: Fingerprint, dropped: Collection[int]) -> Fingerprint:
    """Return a query's fingerprint without some of its operators."""
    new = _numbers_after([operator.id for operator in fingerprint.operators], dropped)
    operators = tuple(
        dataclasses.replace(each, id=new[each.id])
        for each in fingerprint.operators
        if each.id in new
    )
    return dataclasses.replace(fingerprint, operators=operators)


def drop_operators(checkpoint: Storage, dropped: Collection[int]) -> None:
    """Take operators out of a checkpoint that no query runs on, by their numbers.

    Crash safety: none; after an interruption the checkpoint cannot be used.
    """
    numbers = numbers_in(checkpoint.list("state"))
    new = _numbers_after(numbers, dropped)
    for number in dropped:
        checkpoint.delete(f"state/{number}")
    for old, number in new.items():
        if old != number:
            _move(checkpoint, old, number)
    _renumber_commits(checkpoint, new)


def _move(checkpoint: Storage, old: int, number: int) -> None:
    source, target = f"state/{old}", f"state/{number}"
    found = files_under(checkpoint.at(source))
    metadata = {path for path, _ in found if path.startswith("_metadata/")}
    rest = [(path, size) for path, size in found if path not in metadata]
    copy_files(checkpoint.at(source), checkpoint.at(target), rest)
    for path in metadata:
        if not path.endswith(".crc"):
            where = f"{source}/{path}"
            data = _renumbered(checkpoint.read(where), number, where=f"{checkpoint.url}/{where}")
            checkpoint.put(f"{target}/{path}", data)
    checkpoint.delete(source)


def _renumber_commits(checkpoint: Storage, new: Mapping[int, int]) -> None:
    logs = CheckpointLogs(checkpoint)
    for batch in logs.batches("commits"):
        ids = logs.commit(batch).state_ids
        if ids:
            path = f"commits/{batch}"
            moved = {new[number]: each for number, each in ids.items() if number in new}
            checkpoint.delete(f"commits/.{batch}.crc")  # of what was there before
            checkpoint.put(path, with_state_ids(checkpoint.read(path), moved))
