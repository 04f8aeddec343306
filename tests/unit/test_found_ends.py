"""Ends that Spark is asked for: of Kafka, whose connector is not here, and of other versions."""

from __future__ import annotations

import dataclasses
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.queries.fixed_ends import Planned, find_ends
from airflow_provider.runtime.sources.declared import SourceDefinition
from airflow_provider.runtime.storage.local import LocalStorage
from tests.declaring import declared

PLANNED, LATEST = '{"t":{"0":10,"1":5}}', '{"t":{"0":100,"1":80}}'


class Sequence(list[Any]):
    """A Scala sequence, as Py4J shows it."""

    def size(self) -> int:
        return len(self)

    def apply(self, position: int) -> Any:
        return self[position]


class Stream:
    """A source of Spark's that is asked how far it reaches when nothing limits a batch.

    One of the first interface cannot read the offsets that it has written.
    """

    def __init__(
        self, kind: str, latest: str | None = None, *, able: bool = True, first: bool = False
    ) -> None:
        self.kind, self.latest, self.able, self.first = kind, latest, able, first
        self.asked: list[tuple[str, str]] = []

    def getClass(self) -> Any:  # noqa: N802 - Java's
        def field(name: str) -> Any:
            raise Py4JError(f"no field {name}")

        return SimpleNamespace(getSimpleName=lambda: self.kind, getDeclaredField=field)

    def deserializeOffset(self, line: str) -> str:  # noqa: N802 - Spark's
        if self.first:
            raise Py4JError("should not be called")
        return line

    def latestOffset(self, start: str, limit: str) -> Any:  # noqa: N802 - Spark's
        self.asked.append((start, limit))
        return SimpleNamespace(json=lambda: self.latest) if self.latest is not None else None


def planned(stream: Stream, line: str) -> Planned:
    limits = SimpleNamespace(ReadLimit=SimpleNamespace(allAvailable=lambda: "no limit"))
    named: Any = SimpleNamespace(read=SimpleNamespace(streaming=limits))
    for package in reversed(("org", "apache", "spark", "sql", "connector")):
        named = SimpleNamespace(**{package: named})
    kept = SimpleNamespace(SerializedOffset=SimpleNamespace(apply=lambda line: f"kept {line}"))
    named.org.apache.spark.sql.execution = SimpleNamespace(streaming=kept)
    classes = {
        "SupportsTriggerAvailableNow": SimpleNamespace(isInstance=lambda stream: stream.able),
        "Source": SimpleNamespace(isInstance=lambda stream: stream.first),
    }
    for_name = SimpleNamespace(forName=lambda name: classes[name.rpartition(".")[2]])
    named.java = SimpleNamespace(lang=SimpleNamespace(Class=for_name))
    execution = SimpleNamespace(sources=lambda: Sequence([stream]))
    return Planned(execution, named, [line], ["-"], LocalStorage("never-read"))


def source(source_format: str = "kafka", **changes: Any) -> SourceDefinition:
    made = declared(
        "topic",
        format=source_format,
        path=None,
        options={},
        bounded=True,
    )
    return dataclasses.replace(made, **changes)


def offsets(stream: Stream, line: str, asked: SourceDefinition) -> list[str | None]:
    wanted = frozenset({"topic"})
    return [end.offset for end in find_ends(planned(stream, line), [asked], wanted)]


def test_kafka_is_asked_without_a_limit():
    """
    The first batch is sized, so its own end says nothing; Spark has kept the end of the start.
    """
    stream = Stream("KafkaMicroBatchStream", LATEST)

    assert [LATEST] == offsets(stream, PLANNED, source())
    assert [(PLANNED, "no limit")] == stream.asked


MORE = "PythonMicroBatchStreamWithMore"


@pytest.mark.parametrize(
    ("stream", "asked", "found"),
    [
        (Stream("RateStreamMicroBatchStream", able=False), source("rate"), PLANNED),
        (Stream("RatePerMicroBatchStream"), source("rate-micro-batch"), PLANNED),
        # Its answer may be only how far its next read goes.
        (Stream("PythonMicroBatchStream", able=False), source("paging"), None),
        (Stream("PythonMicroBatchStream", able=False), source("paging", ends="latest"), PLANNED),
        (Stream(MORE, LATEST), source("paging"), None),
        (Stream(MORE, LATEST), source("paging", ends="latest"), LATEST),
        (Stream(MORE, LATEST), source("spark-stream-kafka"), LATEST),
        (
            Stream("KafkaMicroBatchStream"),
            source(ends={"t": {"0": 7, "1": 0}}),
            '{"t":{"0":7,"1":0}}',
        ),
    ],
)
def test_who_is_asked(stream, asked, found):
    """What Spark reads to its end in the first batch is not asked again, nor what the job knows."""
    assert ([] if found is None else [found]) == offsets(stream, PLANNED, asked)


def test_nothing_there_is_an_end():
    """A source of which nothing was planned ends before its first row."""
    stream = Stream("KafkaMicroBatchStream")

    assert (["-"], []) == (offsets(stream, "-", source()), stream.asked)


@pytest.mark.parametrize(
    ("line", "ends", "why"),
    [
        (PLANNED, {"t": {"0": 7}}, "says nothing of t/1; give it an offset, 0 for none"),
        ('{"n":5}', {"t": {"0": 7}}, "not by topic and partition"),
    ],
)
def test_offsets_that_do_not_fit_are_refused(line, ends, why):
    """A partition that was forgotten would be read to no end that anybody knows."""
    with pytest.raises(ConfigError, match=why):
        offsets(Stream("KafkaMicroBatchStream"), line, source(ends=ends))


def test_another_version_of_spark_has_no_ends(caplog):
    """
    What cannot be read is said, and the job goes on; it is refused where the job asks for an end.
    """
    stream = Stream("FileStreamSource")

    with caplog.at_level(logging.WARNING):
        assert [] == offsets(stream, '{"logOffset":0}', source("csv"))
    assert "its end is not known, so a retry may read more: no field" in caplog.text
    with pytest.raises(ConfigError, match=r"'topic' \(csv\): its end is not known here"):
        offsets(stream, '{"logOffset":0}', source("csv", ends="latest"))


def test_the_files_of_a_table_are_an_end_like_others(caplog):
    """Spark reads a table of files by its file source; what that has listed is asked for."""
    with caplog.at_level(logging.WARNING):
        assert [] == offsets(Stream("FileStreamSource"), '{"logOffset":0}', source("table"))

    assert "its end is not known, so a retry may read more: no field" in caplog.text


def test_sources_that_cannot_be_told_apart_have_no_ends(caplog):
    """Another number of sources than there are lines: none of them is taken for another."""
    stream = Stream("KafkaMicroBatchStream", LATEST)

    with caplog.at_level(logging.WARNING):
        found = find_ends(planned(stream, PLANNED), [source(), source()], frozenset({"topic"}))

    assert ((), []) == (found, stream.asked)
    assert "source=topic, topic its end is not known" in caplog.text
