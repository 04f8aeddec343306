"""Metadata and schemas of the stateful operators in a checkpoint.

``state/<operator>/_metadata/metadata``, written once, or for operators whose state may change its
schema ``state/<operator>/_metadata/v2/<batch>``, written by the first batch of each run::

    v2
    {"operatorInfo":{"operatorId":0,"operatorName":"symmetricHashJoin"},
     "stateStoreInfo":[{"storeName":"default","numColsPrefixKey":0,"numPartitions":3,
       "stateSchemaFilePaths":["file:/…/state/0/_stateSchema/default/0_5e95695f-…"]}],
     "operatorPropertiesJson":"…"}

Spark reads schema files at these addresses, so a checkpoint cannot simply be moved. Spark before
4.0 writes no metadata: there the folders of its stores tell what an operator has.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.base.names import numbers_in
from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.checkpoint.operator_kinds import JOIN, UNKNOWN
from airflow_provider.runtime.checkpoint.state_files import DEFAULT_STORE
from airflow_provider.runtime.errors import CorruptDocumentError, UnknownFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from airflow_provider.runtime.api.storages import Storage


_VERSIONS = frozenset({"v1", "v2"})
_PROPERTIES = "operatorPropertiesJson"
SCHEMA_FILES = "stateSchemaFilePaths"
_JOIN_STORES = tuple(
    f"{side}-{store}"
    for side in ("left", "right")
    for store in ("keyToNumValues", "keyWithIndexToValue")
)


@dataclasses.dataclass(frozen=True)
class StateVariable:
    """A variable of ``transformWithState``; those of timers have names that begin with ``$``."""

    name: str
    kind: str
    has_ttl: bool


@dataclasses.dataclass(frozen=True)
class OperatorMetadata:
    """One stateful operator, as Spark describes it."""

    id: int
    name: str
    stores: tuple[str, ...]
    partitions: int
    schema_files: tuple[str, ...]
    variables: tuple[StateVariable, ...] = ()
    roots: tuple[str, ...] = ()

    @classmethod
    def parse(cls, data: bytes, *, where: str) -> OperatorMetadata:
        document = _read(data, where=where)
        try:
            info, stores = document["operatorInfo"], document["stateStoreInfo"]
            addresses = [path for store in stores for path in store.get(SCHEMA_FILES, ())]
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
            raise CorruptDocumentError(
                f"{where}: not the metadata of a stateful operator"
            ) from error


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
    """Return the metadata of an operator that no Spark has described."""
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
    """Return the newest metadata of an operator in a checkpoint, or raise FileNotFoundError."""
    folder = f"state/{number}/_metadata"
    entries = numbers_in(checkpoint.list(f"{folder}/v2"))
    path = f"{folder}/v2/{max(entries)}" if entries else f"{folder}/metadata"
    return OperatorMetadata.parse(checkpoint.read(path), where=f"{checkpoint.url}/{path}")


def readdress(data: bytes, *, root: str, where: str) -> bytes:
    """Return an operator's metadata for a checkpoint at another address.

    Without it a copy cannot be read, and not every query can restart on it, once the original is
    gone. *root* is the address as Spark writes it (``file:/…``, ``s3a://…``). Metadata that names
    no address comes back unchanged.
    """
    if not OperatorMetadata.parse(data, where=where).schema_files:
        return data

    def move(document: dict[str, Any]) -> None:
        operator = document["operatorInfo"]["operatorId"]
        for store in document["stateStoreInfo"]:
            store[SCHEMA_FILES] = [
                f"{root.rstrip('/')}/{_within(path, operator, where=where)}"
                for path in store.get(SCHEMA_FILES, ())
            ]

    return changed_metadata(data, move, where=where)


def changed_metadata(data: bytes, change: Callable[[dict[str, Any]], None], *, where: str) -> bytes:
    """Return an operator's metadata after *change* of its document."""
    document = _read(data, where=where)
    change(document)
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    return data.split(b"\n", 1)[0] + b"\n" + text.encode()


def has_one_partition(schema: bytes) -> bool:
    """Whether an operator has one partition whatever was planned, by its state's schema.

    An aggregation without keys has a key without columns, and a limit one that is always null: all
    their rows meet in partition 0.
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
        raise UnknownFormatError(
            f"{where}: {version[:20]!r} is not a known version of an operator's metadata"
        )
    try:
        document = read_json(text)
    except ValueError as error:
        raise CorruptDocumentError(f"{where}: not the metadata of a stateful operator") from error
    return document if isinstance(document, dict) else {}


def _within(path: str, operator: int, *, where: str) -> str:
    """Return the part of a schema file's address that is the same in every copy."""
    begin = path.rfind(f"/state/{operator}/")
    if begin < 0:
        raise UnknownFormatError(
            f"{where}: the schema file {path} lies outside of the checkpoint's state"
        )
    return path[begin + 1 :]


# --- schemas of state ---------------------------------------------------------------------------

DEFAULT_FAMILY = "default"
# A field as Spark's StructType has it in JSON: name, type, nullable, metadata.
Field = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class StateSchema:
    """The columns of one column family, or of a whole store."""

    key: tuple[Field, ...]
    value: tuple[Field, ...]
    user_key: tuple[Field, ...] = ()


def read_schemas(data: bytes, *, where: str) -> dict[str, StateSchema]:
    """Return the schema of each column family; of a store without any as ``default``.

    A schema file is ``state/<operator>/0/[<store>/]_metadata/schema``, or for operators whose state
    may change its schema a file that their metadata names. Strings are those of Java's
    ``writeUTF``::

        "v2"  <chunks> <JSON of the key's schema>  <chunks> <JSON of the value's>
        "v3"  <column families>, each: its name, <id> <JSON of the key's>, <id> <JSON of the
              value's>, <JSON of how keys are encoded>, <JSON of a map's own keys>

    where ``<chunks>`` counts the strings that a longer one was cut into.
    """
    reader = _Reader(data)
    try:
        version = reader.text()
        if version == "v1":
            return {DEFAULT_FAMILY: StateSchema(_fields(reader.text()), _fields(reader.text()))}
        if version == "v2":
            return {DEFAULT_FAMILY: StateSchema(_fields(reader.chunks()), _fields(reader.chunks()))}
        if version == "v3":
            return dict(_family(reader) for _ in range(reader.number(">i")))
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDocumentError(f"{where}: not the schema of a state store") from error
    raise UnknownFormatError(
        f"{where}: {version[:20]!r} is not a known version of a state store's schema"
    )


def _family(reader: _Reader) -> tuple[str, StateSchema]:
    name = reader.text()
    reader.number(">h")  # the id of this version of the key's schema
    key = _fields(reader.chunks())
    reader.number(">h")
    value = _fields(reader.chunks())
    reader.chunks()  # how keys are encoded
    return name, StateSchema(key, value, _fields(reader.chunks()))


def _fields(text: str) -> tuple[Field, ...]:
    return tuple(read_json(text).get("fields", ()))  # of a map's own keys, when there are none


def type_text(plain: str | Mapping[str, Any]) -> str:
    """Return a type in Spark's JSON as SQL writes it: ``bigint``, ``struct<start:timestamp>``."""
    if isinstance(plain, str):
        return _SQL_NAMES.get(plain, plain)
    kind = plain["type"]
    if kind == "struct":
        inner = ",".join(f"{f['name']}:{type_text(f['type'])}" for f in plain["fields"])
        return f"struct<{inner}>"
    if kind == "array":
        return f"array<{type_text(plain['elementType'])}>"
    if kind == "map":
        return f"map<{type_text(plain['keyType'])},{type_text(plain['valueType'])}>"
    return type_text(plain["sqlType"]) if "sqlType" in plain else str(kind)


_SQL_NAMES = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def text(self) -> str:
        size = self.number(">H")
        begin, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise ValueError("the file ends within a string")
        # Java writes letters beyond the first 65,536 as two surrogates, and a zero as two bytes.
        raw = self._data[begin : self._at].replace(b"\xc0\x80", b"\0")
        text = raw.decode("utf-8", "surrogatepass")
        return text.encode("utf-16", "surrogatepass").decode("utf-16")

    def chunks(self) -> str:
        return "".join(self.text() for _ in range(self.number(">i")))
