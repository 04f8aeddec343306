"""The checksums that Spark and Hadoop lay beside a checkpoint's files."""

from __future__ import annotations

import json
import sys
import zlib

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.checkpoint import state_files
from airflow_provider.runtime.checkpoint.state_files import (
    crc32c,
    crc32c_in_python,
    has_hadoop_checksum,
    has_spark_checksum,
)
from airflow_provider.runtime.errors import CorruptDocumentError, UnknownFormatError

# As Spark 4.3 wrote it for nine bytes.
NINE = b"123456789"
SPARK_WROTE = (
    b'{"algorithm":"CRC32C","value":-486108541,"mainFileSize":9,"timestampMs":1795254443289,'
    b'"creator":{"executorId":"driver","taskInfo":"Task= 0.0, Stage= 89.0"}}'
)


def hadoop_checksum(data: bytes, chunk_bytes: int = 512) -> bytes:
    chunks = [data[i : i + chunk_bytes] for i in range(0, len(data), chunk_bytes)]
    sums = b"".join(zlib.crc32(chunk).to_bytes(4, "big") for chunk in chunks)
    return b"crc\0" + chunk_bytes.to_bytes(4, "big") + sums


def spark_checksum(**changed: object) -> bytes:
    return json.dumps({**json.loads(SPARK_WROTE), **changed}).encode()


@pytest.fixture
def _without_the_compiled_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    state_files._implementation.cache_clear()
    yield
    state_files._implementation.cache_clear()


def test_sparks_checksum_is_verified():
    """One CRC-32C over the file, written as Java's signed number, and the file's size."""
    assert has_spark_checksum(NINE, SPARK_WROTE, where="x.crc")
    assert not has_spark_checksum(b"123456780", SPARK_WROTE, where="x.crc")
    assert not has_spark_checksum(NINE, spark_checksum(mainFileSize=8), where="x.crc")


@pytest.mark.usefixtures("_without_the_compiled_one")
def test_sparks_checksum_is_verified_without_the_compiled_implementation():
    """Where google_crc32c is not installed, Python does the same."""
    assert has_spark_checksum(NINE, SPARK_WROTE, where="x.crc")
    assert state_files._implementation() is crc32c_in_python


def test_the_compiled_implementation_is_preferred(monkeypatch):
    """
    Where google_crc32c is installed and compiled it does the work; written in Python it is no gain.
    """
    state_files._implementation.cache_clear()
    assert state_files._implementation() is google_crc32c.value

    monkeypatch.setattr(google_crc32c, "implementation", "python")
    state_files._implementation.cache_clear()
    assert state_files._implementation() is crc32c_in_python
    state_files._implementation.cache_clear()


@given(st.binary(max_size=300))
def test_both_implementations_agree(data):
    """The one in Python gives what the compiled one gives."""
    assert google_crc32c.value(data) == crc32c_in_python(data) == crc32c(data)


def test_an_unknown_algorithm_is_named():
    """Spark may choose another algorithm one day; then nothing is said about the file."""
    with pytest.raises(UnknownFormatError, match=r"x\.crc: checksum algorithm 'XXH3' is not known"):
        has_spark_checksum(NINE, spark_checksum(algorithm="XXH3"), where="x.crc")


@pytest.mark.parametrize("checksum", [b"", b"crc\0", b"[]", b"7", b'{"algorithm":"CRC32C"}'])
def test_what_is_not_sparks_checksum_is_refused(checksum):
    """Other bytes are not taken for a checksum that does not fit."""
    with pytest.raises(CorruptDocumentError, match=r"x\.crc: not one of Spark's checksum files"):
        has_spark_checksum(NINE, checksum, where="x.crc")


# As Hadoop wrote it on a local disk, for a file of 100 bytes of Spark's.
HADOOP_WROTE = bytes.fromhex("6372630000000200") + zlib.crc32(bytes(100)).to_bytes(4, "big")


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 1024, 1500])
def test_hadoops_checksum_is_verified(size):
    """
    One CRC-32 for each chunk of 512 bytes, the last of which may be shorter; none for no bytes.
    """
    data = bytes(range(256)) * 6
    data = data[:size]

    assert has_hadoop_checksum(data, hadoop_checksum(data), where=".x.crc")
    assert not has_hadoop_checksum(data + b"\0", hadoop_checksum(data), where=".x.crc")


def test_hadoops_checksum_as_it_was_written():
    """What Hadoop wrote is understood, and a change of one bit is noticed."""
    assert has_hadoop_checksum(bytes(100), HADOOP_WROTE, where=".x.crc")
    assert not has_hadoop_checksum(bytes(99) + b"\1", HADOOP_WROTE, where=".x.crc")


@pytest.mark.parametrize("checksum", [b"", b"crc\0\0\0\0\0", b"crc\1\0\0\2\0", SPARK_WROTE])
def test_what_is_not_hadoops_checksum_is_refused(checksum):
    """Other bytes are not taken for a checksum that does not fit."""
    with pytest.raises(CorruptDocumentError, match=r"\.x\.crc: not one of Hadoop's checksum files"):
        has_hadoop_checksum(NINE, checksum, where=".x.crc")
