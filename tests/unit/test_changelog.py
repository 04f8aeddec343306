"""The lineage at the head of a changelog, through the codecs that Spark offers."""

from __future__ import annotations

import base64
import json
import struct
import sys

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.checkpoint.state_files import read_lineage
from airflow_provider.runtime.errors import CorruptDocumentError, UnknownFormatError

# The changelog of version 8 as Spark 4.3 wrote it, a few rows and all, with each codec.
SPARK_WROTE = {
    "lz4": (
        "TFo0QmxvY2slqgAAANEAAAD3bQ8O90IAAnYzAJVbeyJ2ZXJzaW9uIjo2LCJjaGVja3BvaW50VW5pcXVlSWQiOiI4Ym"
        "ExOGQzOS02NmMzLTQwZjYtOTM3NC1kZjMxZWJkODMzNDkifSxKAB83SgAE9B1kNDUwYjMyMi1lOGJmLTQ3NDgtODFm"
        "Ni03OTc3YmIyOTExMjQifV0AAAAZAAEAtAMAAAAQAAAAazEwEwAUEQkA0AA0AQAAAAAAAP////9MWjRCbG9jaxUAAA"
        "AAAAAAAAAAAAA=",
        "8ba18d39-66c3-40f6-9374-df31ebd83349",
        "d450b322-e8bf-4748-81f6-7977bb291124",
    ),
    "snappy": (
        "glNOQVBQWQAAAAABAAAAAQAAALDRAfBSAAJ2MwCVW3sidmVyc2lvbiI6NiwiY2hlY2twb2ludFVuaXF1ZUlkIjoiMj"
        "E5MWEwZmMtMTI2MC00M2EyLWFmZDItNWFlYzE2ZjFhMDk3In0seyIVSgA3XkoAsGM1MjkxNjYtZWFlNC00M2U2LTg5"
        "NjgtOGY0YTNjNWM5NzVjIn1dAAAAGQAAAAkCLAMAAAAQAAAAazEwAA0BABENCDQAADQBAAAAAAAA/////w==",
        "2191a0fc-1260-43a2-afd2-5aec16f1a097",
        "2c529166-eae4-43e6-8968-8f4a3c5c975c",
    ),
    "zstd": (
        "KLUv/QBI1AQAgkkiKJC16f//////6zttU9rs/5/1Wbjb2tbCCRFHsndbk3sbBhGm67xr9qe11vr/f6BfuLKi/4T/gx"
        "v+K6qVkDFQvrYea9yuHzNyNdPoGE/nWU0jdUm1zq2GHV+jj2QGl8eQteYp4eM46aLM1dvsc5iRBiQhIBI0MSJnLpxN"
        "mGalCXo4JrUAiYA3SvAFAIBgkBNxRIEqURMHMwEAAA==",
        None,
        "faf41dce-27af-41b6-8474-328138b9629b",
    ),
}


LZF = (
    "WlYBAK8A0R8AAnYzAJVbeyJ2ZXJzaW9uIjo2LCJjaGVja3BvaW50VR9uaXF1ZUlkIjoiMGI0MGMwMTUtNTg2Yi00Nj"
    "FmLWI5MhA1LWI0M2U1NTAwZjc4NSJ9LOACSQA34A5JHzVhZjg5OTc0LTYwMTYtNDFiYS05OGExLTZhNGJiNmZiCjA1"
    "ZjIifV0AAAAZIAOAAAADIAYAECADAmsxMCAFYAAAEWAFQAABNAFABQUAAP////8="
)


def head(lineage: object, version: str = "v3") -> bytes:
    text = json.dumps(lineage).encode()
    return struct.pack(">H", len(version)) + version.encode() + struct.pack(">H", len(text)) + text


def items(lineage: dict[int, str]) -> list[dict[str, object]]:
    return [{"version": v, "checkpointUniqueId": writer} for v, writer in lineage.items()]


def pack(data: bytes, codec: str) -> bytes:
    return bytes(pa.compress(data, codec=codec, asbytes=True))


def lz4(*blocks: bytes, is_packed: bool = True) -> bytes:
    written = b""
    for block in blocks:
        stored = pack(block, "lz4_raw") if is_packed else block
        method = bytes([0x25 if is_packed else 0x15])
        written += b"LZ4Block" + method + struct.pack("<III", len(stored), len(block), 0) + stored
    return written


def snappy(*blocks: bytes) -> bytes:
    written = b"\x82SNAPPY\0" + struct.pack(">II", 1, 1)
    for block in blocks:
        stored = pack(block, "snappy")
        written += struct.pack(">I", len(stored)) + stored
    return written


def zstd(*blocks: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(b"".join(blocks))


CODECS = {"lz4": lz4, "snappy": snappy, "zstd": zstd}


@pytest.mark.parametrize("codec", SPARK_WROTE)
def test_the_lineage_that_spark_wrote_is_read(codec):
    """Each version that the changelog builds on has the id that Spark gave it."""
    data, sixth, seventh = SPARK_WROTE[codec]

    lineage = read_lineage(base64.b64decode(data), where="8_x.changelog")

    assert [6, 7] == sorted(lineage)
    assert seventh == lineage[7]
    assert sixth in {None, lineage[6]}


@pytest.mark.slow
@given(
    st.dictionaries(st.integers(1, 10**6), st.uuids().map(str), max_size=60),
    st.binary(max_size=200),
    st.sampled_from(sorted(CODECS)),
    st.sampled_from(["v3", "v4"]),
    st.integers(1, 4000),
)
def test_any_lineage_is_read_whatever_follows_and_wherever_it_is_cut(
    lineage, rest, codec, version, cut
):
    """A lineage may be long and repetitive, may be spread over blocks, and rows come after it."""
    data = head(items(lineage), version) + rest

    assert lineage == read_lineage(CODECS[codec](data[:cut], data[cut:]), where="")


@pytest.mark.slow
@given(
    st.binary(max_size=400) | st.lists(st.sampled_from([b"ab", b"abc", b"\0" * 90])).map(b"".join)
)
def test_blocks_are_unpacked_as_they_were_packed(noise):
    """Long literals, long matches and matches that overlap themselves come out as they went in."""
    lineage = {1: noise.hex()}
    data = head(items(lineage))

    for packed in (lz4(data), lz4(data, is_packed=False), snappy(data)):
        assert lineage == read_lineage(packed, where="")


def test_the_first_batch_builds_on_nothing():
    """The changelog of version 1 has an empty lineage."""
    assert {} == read_lineage(lz4(head([])), where="1_x.changelog")


@pytest.mark.parametrize(
    ("library", "data"), [("cramjam", snappy(head([]))), ("zstandard", zstd(head([])))]
)
def test_without_a_codecs_library_the_ways_out_are_named(library, data, monkeypatch):
    """
    The extra brings the library; and Spark can keep so many commits that nobody has to look here.
    """
    monkeypatch.setitem(sys.modules, library, None)

    said = rf"^c: .* needs {library}: pip install .*\[codecs\].*minBatchesToRetain"
    with pytest.raises(UnknownFormatError, match=said):
        read_lineage(data, where="c")


def test_what_spark_wrote_with_lzf_is_refused_by_name():
    """No library that is maintained reads it, so another codec is the fix."""
    with pytest.raises(UnknownFormatError, match=r"^c: .*LZF.*another codec.*minBatchesToRetain"):
        read_lineage(base64.b64decode(LZF), where="c")


def test_an_unknown_codec_is_refused_by_how_it_begins():
    """A codec of the user's own cannot be read."""
    with pytest.raises(UnknownFormatError, match=r"^c: compressed with a codec .* b'BZh9"):
        read_lineage(b"BZh91AY&SY", where="c")


@pytest.mark.parametrize("version", ["v1", "v2", "v5", ""])
def test_a_changelog_of_another_version_is_refused_by_name(version):
    """Only the two versions that have a lineage are understood."""
    with pytest.raises(UnknownFormatError, match=f"^c: {version!r} is not a version of changelogs"):
        read_lineage(lz4(head([], version)), where="c")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(lz4(head([]))[:-3], id="cut in the lineage"),
        pytest.param(lz4(head([1])), id="not objects"),
        pytest.param(lz4(head([{"version": 1}])), id="no id"),
        pytest.param(lz4(b"\0\2v3\0\3[{]"), id="not JSON"),
        pytest.param(lz4(b"\0\2\xff\xff\0\2[]"), id="not text"),
        pytest.param(b"LZ4Block%" + struct.pack("<III", 3, 9, 0) + b"\x01\x09\x00", id="no match"),
        pytest.param(snappy(head([]))[:-3], id="Snappy, cut"),
        pytest.param(snappy(b"")[:16] + b"\0\0\0\2\xff\xff", id="Snappy, damaged"),
        pytest.param(b"\x28\xb5\x2f\xfd" + b"\xff" * 20, id="zstd, damaged"),
        pytest.param(zstd(head([]))[:-3], id="zstd, cut"),
    ],
)
def test_a_damaged_head_is_refused(data):
    """Bytes that do not end where they should, or mean nothing, are refused with their address."""
    with pytest.raises(CorruptDocumentError, match=r"^c: not a changelog with a lineage"):
        read_lineage(data, where="c")
