"""Files of the last batch in a source's old folder, which Spark plans again at a start."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from airflow_provider.runtime.checkpoint.last_files import files_of_last_batch
from airflow_provider.runtime.checkpoint.source_names import SOURCE_EVOLUTION
from airflow_provider.runtime.driver.moved_sources import why_moved
from airflow_provider.runtime.sources.declared import SourceDefinition
from airflow_provider.runtime.sources.files import FilesSource
from airflow_provider.runtime.storage.local import LocalStorage

POSITIONS = 'v1\n{"conf":{}}\n'
NAMES = 'v2\n{"conf":{"%s":"true"}}\n' % SOURCE_EVOLUTION  # noqa: UP031 - braces


@dataclasses.dataclass
class Query:
    """What is asked of a query: its sources."""

    sources: tuple[SourceDefinition, ...]


def read_from(path: str, **options: Any) -> Any:
    source = FilesSource("csv", path, options=options)
    return Query((SourceDefinition("b", source, bounded=True),))


def logged(folder: str, *files: str, number: int = 0) -> str:
    return "\n".join(["v1", *(f'{{"path":"{f}","timestamp":1,"batchId":{number}}}' for f in files)])


@pytest.fixture
def checkpoint(tmp_path):
    return LocalStorage(str(tmp_path))


def test_the_last_batch_has_the_files_between_its_offsets(checkpoint):
    """By position, or by name whatever the order; a source read twice has no folder of its own."""
    checkpoint.put("offsets/0", f'{POSITIONS}{{"logOffset":0}}\n-'.encode())
    checkpoint.put("offsets/1", f'{POSITIONS}{{"logOffset":1}}\n{{"logOffset":0}}'.encode())
    checkpoint.put("sources/0/1", logged("0", "file:///a/2", number=1).encode())
    checkpoint.put("sources/1/0", logged("1", "file:///b/1").encode())

    assert {"a": ["file:///a/2"], "b": ["file:///b/1"]} == files_of_last_batch(
        checkpoint, ["a", "b"]
    )
    assert {} == files_of_last_batch(checkpoint, ["a", "a"])

    checkpoint.put("offsets/2", f'{NAMES}b:{{"logOffset":1}}\na:{{"logOffset":1}}'.encode())
    checkpoint.put("offsets/3", f'{NAMES}a:{{"logOffset":1}}\nb:{{"logOffset":2}}'.encode())
    checkpoint.put("sources/b/2", logged("b", "file:///b/3", number=2).encode())
    assert {"a": [], "b": ["file:///b/3"]} == files_of_last_batch(checkpoint, [])


def test_what_is_not_known_is_not_compared(checkpoint):
    """No batch, no batch before it, a log without the position, offsets of another kind."""
    assert {} == files_of_last_batch(checkpoint, ["a"])
    checkpoint.put("offsets/7", f'{POSITIONS}{{"logOffset":0}}'.encode())
    assert {} == files_of_last_batch(checkpoint, ["a"])
    checkpoint.put("offsets/6", f'{POSITIONS}{{"t":{{"0":5}}}}'.encode())
    assert {} == files_of_last_batch(checkpoint, ["a"])


@pytest.mark.parametrize(
    ("query", "address", "is_refused"),
    [
        (read_from("/in/b"), "file:///in/b/1.csv", False),
        (read_from("/in/b/"), "file:///in/b/day=1/a%20b.csv", False),
        (read_from("/in/c"), "file:///in/b/1.csv", True),
        (read_from("/in/b2"), "file:///in/b/1.csv", True),
        (read_from("/in"), "file:///in/b/1.csv", False),
        (read_from("/in/c*"), "file:///in/b/1.csv", False),
        (read_from("/in/c", basePath="/in"), "file:///in/b/1.csv", False),
        (read_from("s3://bucket/c"), "s3a://bucket/b/1.csv", True),
        (read_from("s3://bucket/b"), "s3a://bucket/b/1.csv", False),
    ],
)
def test_a_folder_has_the_files_of_the_last_batch_or_is_refused(query, address, is_refused):
    """A pattern, and a base path of the job's own, are Spark's to judge."""
    why = why_moved(query, lambda: {"b": [address]})

    assert is_refused == (why is not None)
    assert why_moved(query, lambda: {"other": ["file:///x/1"]}) is None
    if why is not None:
        assert f"its last batch has read {address}" in why
