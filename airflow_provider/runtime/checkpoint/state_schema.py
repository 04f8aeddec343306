"""Columns of a state store, from Spark's schema files.

``state/<operator>/0/[<store>/]_metadata/schema``, or for operators whose state may change its
schema the files that their metadata names. Strings are those of Java's ``writeUTF``::

    "v2"  <chunks> <JSON of the key's schema>  <chunks> <JSON of the value's>
    "v3"  <column families>, each: its name, <id> <JSON of the key's>, <id> <JSON of the value's>,
          <JSON of how keys are encoded>, <JSON of a map's own keys>

where ``<chunks>`` counts the strings that a longer one was cut into.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.errors import CorruptDocumentError, UnknownFormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_FAMILY = "default"
# A field as Spark's StructType has it in JSON: name, type, nullable, metadata.
Field = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class StateSchema:
    """The columns of one column family, or of a whole store.

    Attributes:
        key: the fields of its keys.
        value: those of its values.
        user_key: of a map's own keys, when it is a map.
    """

    key: tuple[Field, ...]
    value: tuple[Field, ...]
    user_key: tuple[Field, ...] = ()


def read_schemas(data: bytes, *, where: str) -> dict[str, StateSchema]:
    """Return the schema of each column family; of a store without any as ``default``.

    Args:
        data: a schema file.
        where: its address, named in errors.

    Raises:
        UnknownFormatError: it is of a version unknown here.
        CorruptDocumentError: it is not a schema file.
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
        msg = f"{where}: not the schema of a state store"
        raise CorruptDocumentError(msg) from error
    msg = f"{where}: {version[:20]!r} is not a known version of a state store's schema"
    raise UnknownFormatError(msg)


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
    """What Java's ``DataInputStream`` reads."""

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
            msg = "the file ends within a string"
            raise ValueError(msg)
        # Java writes letters beyond the first 65,536 as two surrogates, and a zero as two bytes.
        raw = self._data[begin : self._at].replace(b"\xc0\x80", b"\0")
        text = raw.decode("utf-8", "surrogatepass")
        return text.encode("utf-16", "surrogatepass").decode("utf-16")

    def chunks(self) -> str:
        return "".join(self.text() for _ in range(self.number(">i")))
