"""Versioned documents: what is stored, what is refused, what is ignored."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import enum
import json
import os
import socket
import uuid
from typing import Any, Literal, NamedTuple, TypedDict

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.base.typed_json import (
    DEEPEST,
    Address,
    IsoTime,
    Mismatch,
    Name,
    NonNegative,
    RelativePath,
    decode,
    read_json,
)
from airflow_provider.runtime.errors import (
    EXIT_FATAL,
    EXIT_USAGE,
    CorruptDocumentError,
    UnsupportedVersionError,
)
from airflow_provider.runtime.jobdir.end_of_input import DrainIntent
from airflow_provider.runtime.jobdir.epoch_documents import EpochRecord
from airflow_provider.runtime.jobdir.lease_records import HeartbeatRecord, LeaseRecord
from airflow_provider.runtime.jobdir.run_records import (
    AttemptRecord,
    FinalCheckpoint,
    JobRecord,
    ProgressRecord,
    ReplyRecord,
    RequestRecord,
    RunRecord,
    StopRecord,
)
from airflow_provider.runtime.jobdir.submissions import DriverEnd, SubmissionRecord
from airflow_provider.runtime.storage.documents import Document
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.storage.objects import MemoryStorage

ALL = [
    AttemptRecord,
    DrainIntent,
    DriverEnd,
    EpochRecord,
    FinalCheckpoint,
    HeartbeatRecord,
    JobRecord,
    LeaseRecord,
    ProgressRecord,
    ReplyRecord,
    RequestRecord,
    RunRecord,
    StopRecord,
    SubmissionRecord,
]


class Colour(enum.Enum):
    """Two words."""

    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    """A named tuple with a default."""

    x: int
    y: int = 0


class Part(TypedDict):
    """A typed dictionary."""

    name: Name


@dataclasses.dataclass(frozen=True)
class Inner:
    """A nested dataclass."""

    size: NonNegative
    path: RelativePath = "a"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Everything(Document):
    """A document with a member of every kind."""

    LOCATIONS = ("locations/{id}.json",)

    id: Name = "one"
    text: str = ""
    number: int = 0
    real: float = 0.5
    is_so: bool = False
    nothing: None = None
    anything: Any = None
    maybe: int | None = None
    either: int | list[str] = 1
    word: Literal["a", 1] = "a"
    colour: Colour = Colour.RED
    inner: Inner = Inner(1)
    point: Point = dataclasses.field(default_factory=lambda: Point(1))
    points: tuple[Point, ...] = ()
    pair: tuple[int, str] = (1, "b")
    parts: list[Part] = dataclasses.field(default_factory=list)
    by_name: dict[Name, Inner] = dataclasses.field(default_factory=dict)
    at: IsoTime = "2026-01-01T00:00:00Z"
    where: Address = "/a b"


_NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.+=-]{0,20}", fullmatch=True)
_WHOLE = st.integers(-(2**63) + 1, 2**63 - 1)
_TEXT = st.text(max_size=20)
_LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT
_JSON = st.recursive(
    _LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3)
)
_INNERS = st.builds(Inner, st.integers(0, 2**63 - 1), _NAMES)
_POINTS = st.builds(Point, _WHOLE, _WHOLE)
_DOCUMENTS = st.builds(
    Everything,
    id=_NAMES,
    text=_TEXT,
    number=_WHOLE,
    real=st.floats(allow_nan=False, allow_infinity=False),
    is_so=st.booleans(),
    anything=_JSON,
    maybe=st.none() | _WHOLE,
    either=_WHOLE | st.lists(_TEXT),
    word=st.sampled_from(["a", 1]),
    colour=st.sampled_from(Colour),
    inner=_INNERS,
    point=_POINTS,
    points=st.lists(_POINTS).map(tuple),
    pair=st.tuples(_WHOLE, _TEXT),
    parts=st.lists(st.fixed_dictionaries({"name": _NAMES})),
    by_name=st.dictionaries(_NAMES, _INNERS),
)


@pytest.mark.slow
@given(_DOCUMENTS)
def test_every_document_survives_a_round_trip(document):
    """A document with members of any kind is read back as it was written, version first."""
    raw = json.loads(document.to_bytes())

    assert document == Everything.from_dict(raw, where="doc.json")
    assert "version" == next(iter(raw))


@pytest.mark.slow
@given(_DOCUMENTS, st.data())
def test_a_damaged_member_is_an_error_of_one_line_or_another_document(document, data):
    """Whatever a member is replaced by, the document is read or refused in one line."""
    raw = document.to_dict()
    raw[data.draw(st.sampled_from([*raw]))] = data.draw(_JSON)
    said = "doc.json: read"
    try:
        read = Everything.from_dict(raw, where="doc.json")
        assert read == Everything.from_dict(json.loads(read.to_bytes()), where="doc.json")
    except (CorruptDocumentError, UnsupportedVersionError) as error:
        said = str(error)

    assert said.startswith("doc.json: ")
    assert 1 == len(said.splitlines())


@pytest.mark.parametrize(
    ("member", "value", "said"),
    [
        ("text", 1, "text: expected text, found 1"),
        ("number", True, "number: expected a whole number of 64 bits, found true"),
        ("number", 1.0, "number: expected a whole number of 64 bits, found 1.0"),
        ("number", 10**400, "found a number of more than 64 bits"),
        ("real", float("inf"), "real: expected a finite number, found Infinity"),
        ("real", 10**400, "real: expected a finite number, found a number of more than 64 bits"),
        ("is_so", 1, "is_so: expected true or false, found 1"),
        ("nothing", 1, "nothing: expected null, found 1"),
        ("maybe", "x", 'maybe: expected a whole number of 64 bits or null, found "x"'),
        ("either", [1], "either[0]: expected text, found 1"),
        ("word", True, 'word: expected one of "a", 1, found true'),
        ("colour", "green", 'colour: expected one of "red", "blue", found "green"'),
        ("inner", [], "inner: expected an object, found a list"),
        ("inner", {}, "inner.size: expected a value, found none"),
        ("inner", {"size": -1}, "inner.size: expected 0 or more, found -1"),
        ("inner", {"size": 1, "path": "../x"}, 'expected a path below its folder, found "../x"'),
        ("inner", {"size": 1, "path": "/x"}, "expected a path below its folder"),
        ("point", [], "point: expected a list of 1 to 2, found a list"),
        ("points", [[1], [1, "2"]], "points[1][1]: expected a whole number"),
        ("pair", [1], "pair: expected a list of 2, found a list"),
        ("parts", [{"name": "a/b"}], "parts[0].name: expected a name"),
        ("by_name", {"..": {"size": 1}}, '[".."]: expected a name'),
        ("at", "yesterday", 'at: expected a time in ISO 8601 with its zone, found "yesterday"'),
        ("at", "0001-01-01T00:00:00+14:00", "at: expected a time in ISO 8601"),
        ("where", "a\nb", "where: expected an address on one line"),
        ("id", "x" * 300, 'found "xxxxx'),
    ],
)
def test_what_a_member_should_have_been_is_said(member, value, said):
    """The error names the member, what it should have been, and what it is, in short."""
    raw = {**Everything().to_dict(), member: value}

    with pytest.raises(CorruptDocumentError) as raised:
        Everything.from_dict(raw, where="doc.json")

    assert said in str(raised.value)
    assert len(str(raised.value)) < 250


def test_what_walks_through_a_document_ends():
    """JSON so deep that a parser, or whoever walks through it, would fall over is refused."""
    storage = MemoryStorage(fsspec.filesystem("memory"), f"/{uuid.uuid4().hex}")
    for member in (b"anything", b"unknown"):
        for depth in (2 * DEEPEST, 60_000):
            deep = b"[" * depth + b"]" * depth
            storage.put("a.json", b'{"version": 1, "%s": %s}' % (member, deep))

            with pytest.raises(CorruptDocumentError, match=r"a\.json: not JSON: .*too deep"):
                Everything.read(storage, "a.json")


@pytest.mark.parametrize("least", [b"0", b""])
def test_any_value_is_as_deep_as_it_may_be(storage, least):
    """A value without a type of its own is read up to its depth, and one level more is refused."""
    for depth, is_read in ((DEEPEST, True), (DEEPEST + 1, False)):
        deep = b"[" * depth + least + b"]" * depth
        storage.put("a.json", b'{"version": 1, "anything": ' + deep + b"}")
        with contextlib.nullcontext() if is_read else pytest.raises(CorruptDocumentError):
            Everything.read(storage, "a.json")


def test_json_is_not_parsed_when_it_is_larger_than_any():
    """Its values take many times its size, so the bound comes before the parser."""
    assert [1, 2] == read_json("[1,2]", at_most_bytes=5)
    with pytest.raises(ValueError, match="6 bytes, more than 5"):
        read_json("[1,2] ", at_most_bytes=5)


def test_half_of_a_character_is_part_of_a_text_and_of_no_name():
    """A file's name that is no Unicode is shown; a member of such a name stops no view of the page."""
    assert {"größe": "\ud800"} == read_json('{"größe": "\\ud800"}')
    with pytest.raises(ValueError, match="name of a field"):
        read_json(b'[{"a": {"\\ud800": 1}}]')


@pytest.mark.parametrize("text", [b"1e999", b"NaN", b"9" * 5000, b'"\\ud800"', b'"\\u0000"', b"-0"])
def test_strange_values_of_json_are_read_or_refused(storage, text):
    """What JSON's grammar lets through is no crash."""
    for member in ("text", "number", "real", "anything", "where", "id"):
        storage.put("a.json", b'{"version": 1, "%s": %s}' % (member.encode(), text))
        with contextlib.suppress(CorruptDocumentError):
            Everything.read(storage, "a.json")


def test_a_copy_under_another_name_is_refused(storage):
    """A document that names its location is read there and nowhere else."""
    Everything(id="one").put(storage, "locations/one.json")
    Everything(id="one").put(storage, "locations/two.json")
    Everything(id="one").put(storage, "else/two.json")

    assert Everything(id="one") == Everything.read(storage, "locations/one.json")
    assert Everything(id="one") == Everything.read(storage, "else/two.json")
    with pytest.raises(CorruptDocumentError, match="copied or renamed"):
        Everything.read(storage, "locations/two.json")


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
def test_every_documents_annotations_are_understood(kind):
    """No annotation of a document is of a type that the decoder does not know."""
    with pytest.raises(CorruptDocumentError, match="expected a value, found none"):
        kind.from_dict({"version": 1}, where="doc.json")


def test_what_is_no_file_is_no_document(tmp_path):
    """
    A pipe, a socket, a folder, a loop of links or a giant file is refused, and not waited for.
    """
    storage = LocalStorage(str(tmp_path))
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "loop.json").symlink_to("loop.json")
    with (tmp_path / "giant.json").open("wb") as file:
        file.truncate(1 << 40)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening:
        listening.bind(str(tmp_path / "socket.json"))

    for name in sorted(os.listdir(tmp_path)):
        with pytest.raises(CorruptDocumentError) as raised:
            JobRecord.read(storage, name)
        assert str(raised.value).startswith(f"{tmp_path}/{name}: ")
    with pytest.raises(CorruptDocumentError):
        storage.read("pipe.json")


def test_a_document_is_put_and_read(storage):
    """A stored document is read from where it was put; where nothing is, None."""
    record = JobRecord(name="job", created="2026-01-01T00:00:00.000Z")
    assert JobRecord.read(storage, "job.json") is None

    record.put(storage, "job.json")

    assert record == JobRecord.read(storage, "job.json")
    assert record.put_if_absent(storage, "job.json") is False
    assert record.put_if_absent(storage, "other.json") is True


def test_a_stored_document_is_text_for_people(storage):
    """A document is JSON on lines of its own, ending with a newline."""
    JobRecord(name="job", created="now").put(storage, "job.json")

    assert b'{\n "version": 1,\n "name": "job",\n "created": "now"\n}\n' == storage.read("job.json")


def test_members_of_a_later_writer_are_ignored():
    """A document of the same version may carry members that this reader does not know."""
    raw = {"version": 1, "name": "job", "created": "now", "colour": {"new": True}}

    assert JobRecord(name="job", created="now") == JobRecord.from_dict(raw, where="job.json")


def test_a_newer_version_is_refused(storage):
    """A document of a newer format names itself, both versions and the fix."""
    storage.put("job.json", b'{"version": 2, "name": "job", "created": "now"}')

    with pytest.raises(UnsupportedVersionError) as raised:
        JobRecord.read(storage, "job.json")

    assert str(raised.value).startswith(f"{storage.url}/job.json: format version 2 is newer than 1")
    assert str(raised.value).endswith("upgrade it")
    assert EXIT_USAGE == raised.value.exit_code


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"version": 1, "name": "jo',
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b'"text"',
        b"{}",
        b'{"version": "1", "name": "job", "created": "now"}',
        b'{"version": null, "name": "job", "created": "now"}',
        b'{"version": 1, "name": "job"}',
    ],
)
def test_what_is_not_the_document_is_refused(storage, data):
    """Damaged, foreign or incomplete JSON is refused by its address."""
    storage.put("job.json", data)

    with pytest.raises(CorruptDocumentError) as raised:
        JobRecord.read(storage, "job.json")

    assert str(raised.value).startswith(f"{storage.url}/job.json: not ")
    assert EXIT_FATAL == raised.value.exit_code


@pytest.mark.parametrize(
    ("kind", "raw", "says"),
    [
        (list[int], 7, "a list"),
        (list[str], "abc", "a list"),
        (dict[str, int], 7, "an object"),
        (dict[str, int], [["a", 1]], "an object"),
        (AttemptRecord, 7, "an object"),
        (dt.datetime, 7, "a time in ISO 8601 with its zone"),
        (dt.datetime, "2026-01-01T00:00:00", "a time in ISO 8601 with its zone"),
    ],
)
def test_a_value_of_another_shape_is_named(kind, raw, says):
    """What is no list, object or time is said to be none, and never taken to pieces."""
    with pytest.raises(Mismatch, match=says):
        decode(kind, raw)


def test_a_document_is_not_read_when_it_is_larger_than_any(tmp_path):
    """A file that somebody has put in the place of a document does not fill the memory."""
    storage = LocalStorage(tmp_path)
    with (tmp_path / "job.json").open("wb") as file:
        file.truncate(JobRecord.MOST_BYTES + 1)

    with pytest.raises(CorruptDocumentError, match="bytes"):
        JobRecord.read(storage, "job.json")
