"""The two kinds of checksum beside a checkpoint's files.

Spark, for state files when it writes checkpoint format 2 (``<file>.crc``, one CRC-32C)::

    {"algorithm":"CRC32C","value":826206989,"mainFileSize":222,"timestampMs":…,"creator":{…}}

Hadoop, for every file on a local disk (``.<file>.crc``): ``crc`` and a zero byte, the length of a
chunk, then one CRC-32 for each chunk of the file, all big-endian.
"""

from __future__ import annotations

import functools
import zlib
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.errors import CorruptDocumentError, UnknownFormatError

if TYPE_CHECKING:
    from collections.abc import Callable

_ALGORITHM = "CRC32C"
_POLYNOMIAL = 0x82F63B78  # Castagnoli's, its bits reversed
_MASK = 0xFFFF_FFFF
_HADOOP_MAGIC = b"crc\0"
_HADOOP_HEADER_BYTES = 8


def has_spark_checksum(data: bytes, checksum: bytes, *, where: str) -> bool:
    """Whether *data* is what Spark wrote.

    Args:
        data: the whole file.
        checksum: the checksum file beside it.
        where: the checksum file's address, named in errors.

    Raises:
        UnknownFormatError: it was made with another algorithm.
        CorruptDocumentError: it is not one of Spark's checksum files.
    """
    try:
        document = read_json(checksum)
        algorithm, size, value = (document[k] for k in ("algorithm", "mainFileSize", "value"))
    except (ValueError, KeyError, TypeError) as error:
        msg = f"{where}: not one of Spark's checksum files"
        raise CorruptDocumentError(msg) from error
    if algorithm != _ALGORITHM:
        msg = f"{where}: checksum algorithm {algorithm!r} is not known here, {_ALGORITHM} is"
        raise UnknownFormatError(msg)
    # Java's int is signed.
    return bool(size == len(data) and value & _MASK == crc32c(data))


def has_hadoop_checksum(data: bytes, checksum: bytes, *, where: str) -> bool:
    """Whether *data* is what Hadoop's local filesystem wrote.

    Args:
        data: the whole file.
        checksum: the hidden checksum file beside it.
        where: the checksum file's address, named in errors.

    Raises:
        CorruptDocumentError: it is not one of Hadoop's checksum files.
    """
    chunk_bytes = int.from_bytes(checksum[len(_HADOOP_MAGIC) : _HADOOP_HEADER_BYTES], "big")
    if not checksum.startswith(_HADOOP_MAGIC) or not chunk_bytes:
        msg = f"{where}: not one of Hadoop's checksum files"
        raise CorruptDocumentError(msg)
    view = memoryview(data)
    sums = b"".join(
        zlib.crc32(view[start : start + chunk_bytes]).to_bytes(4, "big")
        for start in range(0, len(data), chunk_bytes)
    )
    return sums == checksum[_HADOOP_HEADER_BYTES:]


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of *data*."""
    return _implementation()(data)


@functools.cache
def _implementation() -> Callable[[bytes], int]:
    try:
        # Not a dependency: it comes with Google Cloud Storage's client.
        import google_crc32c
    except ImportError:
        return crc32c_in_python
    if google_crc32c.implementation != "c":
        return crc32c_in_python
    compiled: Callable[[bytes], int] = google_crc32c.value
    return compiled


def crc32c_in_python(data: bytes) -> int:
    """Return the CRC-32C of *data*, byte by byte: some MB/s, where the compiled one makes GB/s."""
    table = _table()
    value = _MASK
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ _MASK


@functools.cache
def _table() -> tuple[int, ...]:
    return tuple(functools.reduce(_shift, range(8), byte) for byte in range(256))


def _shift(value: int, _: int) -> int:
    return value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
