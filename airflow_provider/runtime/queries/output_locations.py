"""Output locations: refuses outputs whose rows would get among those of others, or into the input.

A reader of a folder of files takes all files in it for one table. So a folder has one writer. A
table of Delta may have several: its log checks what they add.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import os
import posixpath
import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from airflow_provider.runtime.api.sinks import LocatedSink, OnePhaseSink, Sink
from airflow_provider.runtime.base.extensions import check_api_version
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.fixes import words
from airflow_provider.runtime.jobdir.datasets import folder_dataset
from airflow_provider.runtime.sources.path_patterns import named_by
from airflow_provider.runtime.storage.open import local_path_of, spark_url

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from airflow_provider.runtime.api.sinks import NamedSink
    from airflow_provider.runtime.sources.declared import SourceDefinition

_GLOB: Final = re.compile(r"[*?\[{]")
_ESCAPED: Final = re.compile(r"\\(.)")
_ALTERNATIVES: Final = re.compile(r"\{([^{}]*)\}")


def location_key(path: str) -> str:
    """Return the one form of a folder's address, or pattern, by which it is compared."""
    local = local_path_of(path)
    if local is not None:
        return os.path.realpath(local).rstrip("/")
    with contextlib.suppress(ConfigError):  # in Azure, of an address without the account
        path = spark_url(path)
    location = folder_dataset(path)
    return f"{location.namespace}{posixpath.normpath(f'/{location.name}')}".rstrip("/")


def output_named(path: str | None, written: Collection[str]) -> str | None:
    """Return the folder, one of *written*, that a path names literally or as a pattern."""
    names = () if path is None else (path, named_by(path))
    return next((name for name in names if location_key(name) in written), None)


@dataclasses.dataclass(frozen=True)
class OutputLocation:
    """A folder that a query writes, as the job names it.

    *is_of_files*: all files in it are its rows, because it has no log that lists them.
    """

    query: str
    sink: str
    location: str
    is_of_files: bool

    @classmethod
    def of(cls, query: str, sink: NamedSink) -> OutputLocation | None:
        if not isinstance(sink, LocatedSink) or sink.location is None:
            return None
        return cls(query, sink.name, sink.location, sink.holds_files)

    @property
    def key(self) -> str:
        return location_key(self.location)


class OutputLocations:
    """The folders that the queries of a job write, added query by query."""

    def __init__(self, job_dir: str | None = None) -> None:
        self._job_dir = job_dir
        self._outputs: list[OutputLocation] = []
        self._sources: list[tuple[str, SourceDefinition]] = []

    def add(
        self, query: str, sinks: Sequence[NamedSink], sources: Sequence[SourceDefinition]
    ) -> None:
        found = [
            location for sink in sinks if (location := OutputLocation.of(query, sink)) is not None
        ]
        for output in found:
            self._check_job_dir(output)
            for other in self._outputs:
                _check_outputs(other, output)
            self._outputs.append(output)
        new = [(query, source) for source in sources if source.folder is not None]
        self._sources += new
        for output in self._outputs:
            # What was declared before is compared with what is new.
            for reader, source in self._sources if output in found else new:
                _check_input(output, reader, source)

    def _check_job_dir(self, output: OutputLocation) -> None:
        if self._job_dir is None:
            return
        job_dir = location_key(self._job_dir)
        is_inside = _holds(job_dir, output.key)
        if is_inside or (output.is_of_files and _is_seen_in(output.key, job_dir)):
            where = "is in the job directory" if is_inside else "has the job directory in it,"
            raise ConfigError(
                f"query {output.query!r} writes to {output.location}, which {where} "
                f"{self._job_dir}; write to a folder outside of it"
            )


def _check_outputs(first: OutputLocation, second: OutputLocation) -> None:
    is_one_query = first.query == second.query
    if first.key == second.key:
        if not (is_one_query or first.is_of_files or second.is_of_files):
            return  # a table keeps the epochs of queries apart, not those of one query's sinks
        writers = (
            f"query {first.query!r} writes twice"
            if is_one_query
            else f"queries {first.query!r} and {second.query!r} both write"
        )
        way = (
            "give each sink a folder of its own"
            if is_one_query
            else f"{words()['ONE_OUTPUT']}, or give each a folder of its own"
        )
        raise ConfigError(
            f"{writers} to {second.location}, where readers could not tell them apart; {way}"
        )
    for outer, inner in ((first, second), (second, first)):
        if _is_seen_in(outer.key, inner.key):
            raise ConfigError(
                f"query {inner.query!r} writes to {inner.location}, which is inside "
                f"{outer.location}, where query {outer.query!r} writes, and would be taken for a "
                "part of that; write to a folder beside it"
            )


def _check_input(output: OutputLocation, reader: str, source: SourceDefinition) -> None:
    if source.folder is None or not reads_folder(location_key(source.folder), output.key):
        return
    if reader == output.query:
        raise ConfigError(
            f"query {output.query!r} writes to {output.location}, which source {source.name!r} "
            "reads, so that it would read its own rows; write to a folder outside of it"
        )
    if _holds(output.key, location_key(source.folder)):
        return  # it reads what the other query writes, and waits for it: see upstream_of
    raise ConfigError(
        f"query {output.query!r} writes to {output.location}, which is in what source "
        f"{source.name!r} of query {reader!r} reads; write to a folder outside of it, or let the "
        "source read that folder alone"
    )


def _holds(outer: str, inner: str) -> bool:
    return f"{inner}/".startswith(f"{outer}/")


def _is_seen_in(outer: str, inner: str) -> bool:
    """Whether a reader of *outer* would find the files of *inner*, a folder inside of it."""
    if outer == inner or not _holds(outer, inner):
        return False
    return not any(_is_hidden(name) for name in inner[len(outer) :].strip("/").split("/"))


def _is_hidden(name: str) -> bool:
    """Whether Spark ignores a folder; a partition's may begin with an underscore."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def reads_folder(pattern: str, location: str) -> bool:
    """Whether a reader of *pattern* finds the files in a folder; both are keys of locations."""
    wanted, there = pattern.rstrip("/").split("/"), location.rstrip("/").split("/")
    if any(not _matches(a, b) for a, b in zip(wanted, there, strict=False)):
        return False
    below = wanted[len(there) :]  # names of files, or of folders of partitions
    if below:
        return all(_GLOB.search(name) for name in below)
    return not any(_is_hidden(name) for name in there[len(wanted) :])


def _matches(pattern: str, name: str) -> bool:
    if named_by(pattern) == name:
        return True
    # Hadoop escapes a letter by a backslash, fnmatch by brackets.
    given = (_ESCAPED.sub(r"[\1]", each) for each in _alternatives(pattern))
    return any(fnmatch.fnmatchcase(name, each) for each in given)


def _alternatives(pattern: str) -> Iterator[str]:
    found = _ALTERNATIVES.search(pattern)
    if found is None:
        yield pattern
        return
    for each in found[1].split(","):
        yield from _alternatives(f"{pattern[: found.start()]}{each}{pattern[found.end() :]}")


Sinks: TypeAlias = "tuple[Sink | OnePhaseSink, ...]"


def sinks_of(query: str, to: Sink | OnePhaseSink | Sequence[Sink]) -> Sinks:
    """Return the sinks that ``ctx.write`` is given."""
    sinks: tuple[Any, ...] = tuple(to) if isinstance(to, (list, tuple)) else (to,)
    if not sinks:
        raise ConfigError(f"query {query!r} has no sink; write it to files(…)")
    for sink in sinks:
        if not isinstance(sink, (Sink, OnePhaseSink)):
            raise ConfigError(
                f"query {query!r}: unknown sink {sink!r}; use files(…) or a sink of your own"
            )
        check_api_version(sink, f"query {query!r}: the sink {sink.name!r}")
    check_together(query, sinks)
    return sinks


def check_together(query: str, sinks: Sinks) -> None:
    """Refuse sinks that cannot be those of one query."""
    names = [sink.name for sink in sinks]
    if len(set(names)) != len(names):
        raise ConfigError(
            f"query {query!r} has two sinks {names}; each must write to a location of its own"
        )
    if len(sinks) > 1 and any(isinstance(sink, OnePhaseSink) for sink in sinks):
        raise ConfigError(
            f"query {query!r}: one of Spark's own sinks cannot share epochs with others {names}; "
            "write a second query"
        )
