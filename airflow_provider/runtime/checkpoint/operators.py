"""Metadata of the stateful operators in a checkpoint.

``state/<operator>/_metadata/metadata``, written once, or for operators whose state may change its
schema ``state/<operator>/_metadata/v2/<batch>``, written by the first batch of each run::

    v2
    {"operatorInfo":{"operatorId":0,"operatorName":"symmetricHashJoin"},
     "stateStoreInfo":[{"storeName":"default","numColsPrefixKey":0,"numPartitions":3,
       "stateSchemaFilePaths":["file:/…/state/0/_stateSchema/default/0_5e95695f-…"]}],
     "operatorPropertiesJson":"…"}

The addresses of the schema files are the reason why a checkpoint cannot simply be moved: Spark
reads them where it wrote them.

Spark before 4.0 writes none of it: there the folders of its stores tell what an operator has.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs, with_state_ids
from airflow_provider.runtime.checkpoint.operator_kinds import JOIN, UNKNOWN
from airflow_provider.runtime.checkpoint.state_files import DEFAULT_STORE
from airflow_provider.runtime.checkpoint.topology import Topology
from airflow_provider.runtime.errors import CorruptDocumentError, UnknownFormatError
from airflow_provider.runtime.storage.copy_files import copy_files
from airflow_provider.runtime.storage.file_tree import files_under
from airflow_provider.runtime.storage.numbered_files import numbers_in

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.checkpoint.fingerprint import Fingerprint


_VERSIONS = frozenset({"v1", "v2"})
_PROPERTIES = "operatorPropertiesJson"
_SCHEMA_FILES = "stateSchemaFilePaths"
_JOIN_STORES = tuple(
    f"{side}-{store}"
    for side in ("left", "right")
    for store in ("keyToNumValues", "keyWithIndexToValue")
)


@dataclasses.dataclass(frozen=True)
class StateVariable:
    """A variable of ``transformWithState``.

    Attributes:
        name: what the processor calls it; of timers a name of Spark's, which begins with ``$``.
        kind: ``ValueState``, ``ListState``, ``MapState`` or ``TimerState``.
        has_ttl: whether its values expire.
    """

    name: str
    kind: str
    has_ttl: bool


@dataclasses.dataclass(frozen=True)
class OperatorMetadata:
    """One stateful operator, as Spark describes it.

    Attributes:
        id: its number in the query's plan.
        name: what Spark calls its kind.
        stores: the names of its state stores; a join may have four.
        partitions: the number of partitions that it was planned with.
        schema_files: the schema files that it names, relative to the checkpoint.
        variables: those of ``transformWithState``.
        roots: the checkpoints in which those schema files lie, as Spark names them.
    """

    id: int
    name: str
    stores: tuple[str, ...]
    partitions: int
    schema_files: tuple[str, ...]
    variables: tuple[StateVariable, ...] = ()
    roots: tuple[str, ...] = ()

    @classmethod
    def parse(cls, data: bytes, *, where: str) -> OperatorMetadata:
        """Read the metadata's bytes.

        Raises:
            UnknownFormatError: they are of a version unknown here.
            CorruptDocumentError: they are not an operator's metadata.
        """
        document = _read(data, where=where)
        try:
            info, stores = document["operatorInfo"], document["stateStoreInfo"]
            addresses = [path for store in stores for path in store.get(_SCHEMA_FILES, ())]
            inside = tuple(_within(path, info["operatorId"], where=where) for path in addresses)
            return cls(
                id=int(info["operatorId"]),
                name=str(info["operatorName"]),
                stores=tuple(str(store["storeName"]) for store in stores),
                partitions=max(int(store["numPartitions"]) for store in stores),
                schema_files=inside,
                variables=_variables(document.get(_PROPERTIES)),
                roots=tuple(
                    path.removesuffix(f"/{part}")
                    for path, part in zip(addresses, inside, strict=True)
                ),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            msg = f"{where}: not the metadata of a stateful operator"
            raise CorruptDocumentError(msg) from error


def _variables(properties: str | None) -> tuple[StateVariable, ...]:
    return tuple(
        StateVariable(
            name=str(each["stateName"]),
            kind=str(each["stateVariableType"]),
            has_ttl=bool(each.get("ttlEnabled")),
        )
        for each in read_json(properties or "{}").get("stateVariables", ())
    )


def infer_operator(number: int, folders: Collection[str], partitions: int) -> OperatorMetadata:
    """Return what is known of an operator that no Spark has described.

    Args:
        number: its number in the query's plan.
        folders: the stores of which there are files; all of a kind's are expected.
        partitions: how many the query was planned with.
    """
    is_join = not set(_JOIN_STORES).isdisjoint(folders)
    expected = _JOIN_STORES if is_join else (DEFAULT_STORE,)
    return OperatorMetadata(
        id=number,
        name=JOIN if is_join else UNKNOWN,
        stores=(*expected, *sorted(set(folders) - set(expected))),
        partitions=partitions,
        schema_files=(),
    )


def describe_operator(checkpoint: Storage, number: int) -> OperatorMetadata:
    """Return what a checkpoint says of one of its stateful operators.

    Raises:
        FileNotFoundError: it says nothing.
        UnknownFormatError, CorruptDocumentError: see :meth:`OperatorMetadata.parse`.
    """
    folder = f"state/{number}/_metadata"
    entries = numbers_in(checkpoint.list(f"{folder}/v2"))
    path = f"{folder}/v2/{max(entries)}" if entries else f"{folder}/metadata"
    return OperatorMetadata.parse(checkpoint.read(path), where=f"{checkpoint.url}/{path}")


def readdress(data: bytes, *, root: str, where: str) -> bytes:
    """Return an operator's metadata for a checkpoint that lies elsewhere.

    Without it a copy cannot be read, and not every query can be restarted on it, once the original
    is gone.

    Args:
        data: the metadata's bytes; those that name no address come back as they are.
        root: the address of the other checkpoint, as Spark writes it (``file:/…``, ``s3a://…``).
        where: the address of *data*, named in errors.

    Raises:
        UnknownFormatError: they are of a version unknown here.
        CorruptDocumentError: they are not an operator's metadata.
    """
    if not OperatorMetadata.parse(data, where=where).schema_files:
        return data
    document = _read(data, where=where)
    operator = document["operatorInfo"]["operatorId"]
    for store in document["stateStoreInfo"]:
        store[_SCHEMA_FILES] = [
            f"{root.rstrip('/')}/{_within(path, operator, where=where)}"
            for path in store.get(_SCHEMA_FILES, ())
        ]
    version = data.split(b"\n", 1)[0]
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    return version + b"\n" + text.encode()


def renumber(data: bytes, number: int, *, where: str) -> bytes:
    """Return an operator's metadata for another number in the query's plan.

    Args:
        data: the metadata's bytes.
        number: the new number.
        where: the address of *data*, named in errors.

    Raises:
        UnknownFormatError: they are of a version unknown here.
        CorruptDocumentError: they are not an operator's metadata.
    """
    before = OperatorMetadata.parse(data, where=where)
    document = _read(data, where=where)
    document["operatorInfo"]["operatorId"] = number
    for store in document["stateStoreInfo"]:
        if _SCHEMA_FILES in store:
            old, new = f"/state/{before.id}/", f"/state/{number}/"
            store[_SCHEMA_FILES] = [new.join(path.rsplit(old, 1)) for path in store[_SCHEMA_FILES]]
    version = data.split(b"\n", 1)[0]
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    return version + b"\n" + text.encode()


def has_one_partition(schema: bytes) -> bool:
    """Whether an operator runs in one partition whatever was planned, by its state's schema.

    An aggregation without keys has a key without columns, and a limit one that is always null:
    all their rows meet in partition 0.
    """
    text = schema.decode("latin-1")  # strings among lengths in binary
    try:
        key, _ = json.JSONDecoder().raw_decode(text, text.index("{"))
        return all(field["type"] == "void" for field in key["fields"])
    except (ValueError, KeyError, TypeError):
        return False


def _read(data: bytes, *, where: str) -> dict[str, Any]:
    version, _, text = data.decode(errors="replace").partition("\n")
    if version not in _VERSIONS:
        msg = f"{where}: {version[:20]!r} is not a known version of an operator's metadata"
        raise UnknownFormatError(msg)
    try:
        document = read_json(text)
    except ValueError as error:
        msg = f"{where}: not the metadata of a stateful operator"
        raise CorruptDocumentError(msg) from error
    return document if isinstance(document, dict) else {}


def _within(path: str, operator: int, *, where: str) -> str:
    """Return the part of a schema file's address that is the same in every copy."""
    begin = path.rfind(f"/state/{operator}/")
    if begin < 0:
        msg = f"{where}: the schema file {path} lies outside of the checkpoint's state"
        raise UnknownFormatError(msg)
    return path[begin + 1 :]


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


def fingerprint_without(fingerprint: Fingerprint, dropped: Collection[int]) -> Fingerprint:
    """Return what made a query's state without some of its operators."""
    new = numbers_after([operator.id for operator in fingerprint.operators], dropped)
    operators = tuple(
        dataclasses.replace(each, id=new[each.id])
        for each in fingerprint.operators
        if each.id in new
    )
    return dataclasses.replace(fingerprint, operators=operators)


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
    found = files_under(checkpoint.at(source))
    metadata = {path for path, _ in found if path.startswith("_metadata/")}
    rest = [(path, size) for path, size in found if path not in metadata]
    copy_files(checkpoint.at(source), checkpoint.at(target), rest)
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
