"""Input that an operation which goes back reads again, and whether it is still there.

A restore or a rewind sets a query to an earlier position, from which it reads again the files that
it has read since. ``cleanSource``, a retention rule or a person may have removed them meanwhile:
their rows would be reverted and never come back. Such an operation is refused before it is
recorded. Only a job that goes back to its very beginning accepts input that was written anew: none
of the files that it has read is there, and their folders have others.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.api.sinks import LocatedSink
from airflow_provider.runtime.errors import LostInputError
from airflow_provider.runtime.savepoints.read_files import read_files
from airflow_provider.runtime.storage.input_folders import names_in_folder
from airflow_provider.runtime.storage.open import spark_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.savepoints.catalog import Savepoint
    from airflow_provider.runtime.savepoints.read_files import ReadFiles
    from airflow_provider.runtime.sinks.revert import OutputOfQuery

log = logging.getLogger(__name__)

ListNames = Callable[[str], Collection[str] | None]
"""Returns the names in a folder of Spark's address; None where it cannot be listed."""
_SHOWN: Final = 3
_FIXES: Final = (
    "Nothing was changed. Put them back where they were and do the same again "
    "(cleanSource='archive' has moved them to sourceArchiveDir, below their whole path). Without "
    "them their rows are lost: --accept-lost-input of 'spark-stream rewind' and 'spark-stream "
    "savepoint restore' goes back all the same"
)


def files_to_read_again(files: ReadFiles) -> list[str]:
    """Return the files that a source reads again from its saved position on; pure."""
    read = {file for file, number in files.saved.items() if number <= files.position}
    return [file for file in {**files.saved, **files.now} if file not in read]


def missing_files(
    needed: Sequence[str], known: Collection[str], there: Mapping[str, Collection[str]]
) -> list[str]:
    """Return those of the needed files that are gone; none if all was written anew; pure.

    Args:
        needed: the files that are read again.
        known: all files that the source has read.
        there: the names in each folder that could be listed.
    """
    gone = [file for file in needed if not _is_there(file, there)]
    return [] if len(gone) == len(known) and _has_others(gone, known, there) else gone


def _has_others(
    gone: Iterable[str], known: Collection[str], there: Mapping[str, Collection[str]]
) -> bool:
    return any(
        f"{folder}/{name}" not in known and not name.startswith((".", "_"))
        for folder in dict.fromkeys(map(_folder_of, gone))
        for name in there[folder]
    )


@dataclasses.dataclass(frozen=True)
class InputCheck:
    """Checks the input of operations that go back.

    Attributes:
        list_names: how folders are listed.
        accepts_loss: whether the loss of rows is accepted, and only logged.
    """

    list_names: ListNames = names_in_folder
    accepts_loss: bool = False

    def check(
        self,
        directory: JobDirectory,
        savepoint: Savepoint | None,
        names: Mapping[str, str],
        *,
        outputs: Iterable[OutputOfQuery] = (),
        skips_in_flight: bool = False,
        is_accepted: bool = False,
    ) -> list[str]:
        """Refuse to go back if a file that would be read again is gone; nothing is written.

        Args:
            directory: the job that goes back.
            savepoint: to where; None for the job's very beginning.
            names: for each query the savepoint's that it continues from, or "" for a reset.
            outputs: the job's queries: what one writes for another is written again.
            skips_in_flight: whether the savepoint's batch in flight never runs.
            is_accepted: whether the loss of rows is a part of the operation.

        Returns:
            The folders that could not be listed.

        Raises:
            LostInputError: some of the files are gone.
        """
        jobs = [directory.url, *([savepoint.record.source] if savepoint is not None else [])]
        own = [*(f"{spark_url(url)}/" for url in jobs), *_folders_written(outputs)]
        unlisted: dict[str, None] = {}
        lost: list[str] = []
        for name, theirs in names.items():
            saved = savepoint.record.queries.get(theirs) if savepoint is not None else None
            if saved is not None and saved.has_ended:
                continue
            ended = saved.ended if saved is not None else ()
            for files in read_files(
                directory, name, savepoint, theirs, skips_in_flight=skips_in_flight
            ):
                needed = [f for f in files_to_read_again(files) if not f.startswith((*own,))]
                if files.source not in ended:
                    there = self._list(needed, unlisted)
                    lost += _losses(name, files, needed, there)
        if lost:
            where = savepoint.url if savepoint is not None else "the beginning"
            text = f"{directory.url}: to go back to {where}, {'; '.join(lost)}"
            if not (is_accepted or self.accepts_loss):
                raise LostInputError(f"{text}. {_FIXES}")
            log.warning("DATA LOSS: %s; their rows are not read again", text)
        return [*unlisted]

    def _list(self, files: Iterable[str], unlisted: dict[str, None]) -> dict[str, Collection[str]]:
        there = {}
        for folder in dict.fromkeys(map(_folder_of, files)):
            names = self.list_names(folder)
            if names is None:
                unlisted[folder] = None
            else:
                there[folder] = names
        return there


LISTED_HERE: Final = InputCheck()
"""A check in a process without Spark."""


def _losses(
    query: str, files: ReadFiles, needed: Sequence[str], there: Mapping[str, Collection[str]]
) -> Iterator[str]:
    gone = missing_files(needed, {*files.now, *files.saved}, there)
    if gone:
        more = f" and {len(gone) - _SHOWN:,} more" if len(gone) > _SHOWN else ""
        yield (
            f"query {query!r} has to read {len(needed):,} files of source {files.source!r} again, "
            f"and {len(gone):,} of them are gone: {', '.join(gone[:_SHOWN])}{more}"
        )
    elif needed and not _is_there(needed[0], there):
        log.warning(
            "query=%s source=%s: none of the %s files that it has read is there, and their folders "
            "have others, which are read in their place",
            *(query, files.source, f"{len(needed):,}"),
        )


def _folders_written(queries: Iterable[OutputOfQuery]) -> Iterator[str]:
    for sink in (sink for query in queries for sink in query.sinks):
        if isinstance(sink, LocatedSink) and sink.location is not None:
            yield f"{spark_url(sink.location).rstrip('/')}/"


def _is_there(file: str, there: Mapping[str, Collection[str]]) -> bool:
    folder, _, name = file.rpartition("/")
    return folder not in there or name in there[folder]


def _folder_of(file: str) -> str:
    return file.rpartition("/")[0]
