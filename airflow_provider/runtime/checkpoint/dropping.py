"""Taking stateful operators out of a stopped query's checkpoint.

Spark numbers stateful operators by their places in the plan, so those behind one that goes move up:
their folders, their metadata, and in checkpoint format 2 the ids of their states in the commit log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs, with_state_ids
from airflow_provider.runtime.checkpoint.operators import renumber
from airflow_provider.runtime.checkpoint.topology import Topology
from airflow_provider.runtime.names import numbers_in
from airflow_provider.runtime.storage.copies import copy_files
from airflow_provider.runtime.storage.trees import files_under

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_provider.runtime.storage.base import Storage


def numbers_after(numbers: Collection[int], dropped: Collection[int]) -> dict[int, int]:
    """Return the new numbers of the operators that stay, by their old ones, ascending."""
    stay = sorted(set(numbers) - set(dropped))
    return {old: old - sum(gone < old for gone in dropped) for old in stay}


def topology_without(topology: Topology, dropped: Collection[int]) -> Topology:
    """Return what a query consists of without some of its operators."""
    if topology.operators is None:
        return topology
    new = numbers_after([operator.id for operator in topology.operators], dropped)
    operators = tuple(o._replace(id=new[o.id]) for o in topology.operators if o.id in new)
    return Topology(topology.sources, operators, topology.provider)


def drop_operators(checkpoint: Storage, dropped: Collection[int]) -> None:
    """Take operators out of a checkpoint that no query runs on.

    Args:
        checkpoint: the checkpoint.
        dropped: their numbers.

    Crash safety: none; a checkpoint in which this was cut short is of no use.
    """
    numbers = numbers_in(checkpoint.list("state"))
    new = numbers_after(numbers, dropped)
    for number in dropped:
        checkpoint.delete(f"state/{number}")
    for old, number in new.items():
        if old != number:
            _move(checkpoint, old, number)
    _renumber_commits(checkpoint, new)


def _move(checkpoint: Storage, old: int, number: int) -> None:
    source, target = f"state/{old}", f"state/{number}"
    found = files_under(f"{checkpoint.url}/{source}")
    metadata = {path for path, _ in found if path.startswith("_metadata/")}
    rest = [(path, size) for path, size in found if path not in metadata]
    copy_files(f"{checkpoint.url}/{source}", f"{checkpoint.url}/{target}", rest)
    for path in metadata:
        if not path.endswith(".crc"):
            where = f"{source}/{path}"
            data = renumber(checkpoint.read(where), number, where=f"{checkpoint.url}/{where}")
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
