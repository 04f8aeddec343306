"""Versioned documents: what is stored, what is refused, what is ignored."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.drains import DrainIntent
from airflow_provider.runtime.errors import (
    EXIT_FATAL,
    EXIT_USAGE,
    CorruptDocumentError,
    UnsupportedVersionError,
)
from airflow_provider.runtime.jobdir import (
    AttemptRecord,
    FinalCheckpoint,
    JobRecord,
    ProgressRecord,
    ReplyRecord,
    RequestRecord,
    RunRecord,
    StopRecord,
)
from airflow_provider.runtime.lease import HeartbeatRecord, LeaseRecord
from airflow_provider.runtime.sinks import EpochRecord
from airflow_provider.runtime.submissions import ExitRecord, SubmissionRecord

ALL = [
    AttemptRecord,
    DrainIntent,
    EpochRecord,
    ExitRecord,
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
_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
_VALUE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _TEXT
_JSON = st.recursive(
    _VALUE, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3)
)


@given(st.data())
def test_every_document_survives_a_round_trip(data):
    """
    A document of any kind with any values is read back as it was written, version first.
    """
    kind = data.draw(st.sampled_from(ALL))
    names = [field.name for field in dataclasses.fields(kind)]
    document = kind(**{name: data.draw(_JSON) for name in names})
    raw = json.loads(document.to_bytes())

    assert document == kind.from_dict(raw, where="doc.json")
    assert ["version", *names] == list(raw)
    assert kind.VERSION == raw["version"]


def test_a_document_is_put_and_read(storage):
    """
    A stored document is read from where it was put; where nothing is, None.
    """
    record = JobRecord(name="job", created="2026-01-01T00:00:00.000Z")
    assert JobRecord.read(storage, "job.json") is None

    record.put(storage, "job.json")

    assert record == JobRecord.read(storage, "job.json")
    assert record.put_if_absent(storage, "job.json") is False
    assert record.put_if_absent(storage, "other.json") is True


def test_a_stored_document_is_text_for_people(storage):
    """
    A document is JSON on lines of its own, ending with a newline.
    """
    JobRecord(name="job", created="now").put(storage, "job.json")

    assert b'{\n "version": 1,\n "name": "job",\n "created": "now"\n}\n' == storage.read("job.json")


def test_members_of_a_later_writer_are_ignored():
    """
    A document of the same version may carry members that this reader does not know.
    """
    raw = {"version": 1, "name": "job", "created": "now", "colour": {"new": True}}

    assert JobRecord(name="job", created="now") == JobRecord.from_dict(raw, where="job.json")


def test_a_newer_version_is_refused(storage):
    """
    A document of a newer format names itself, both versions and the way out.
    """
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
    """
    Damaged, foreign or incomplete JSON is refused by its address.
    """
    storage.put("job.json", data)

    with pytest.raises(CorruptDocumentError) as raised:
        JobRecord.read(storage, "job.json")

    assert str(raised.value).startswith(f"{storage.url}/job.json: not ")
    assert EXIT_FATAL == raised.value.exit_code
