"""Sources whose files Spark removes when it has read them, and what else would read these files."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.queries.output_locations import location_key, reads_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.sources.declared import SourceDefinition


def cleaning(source: SourceDefinition) -> str | None:
    """Return the source's option ``cleanSource`` as text; None if Spark leaves its files alone."""
    return source.files.cleaning() if source.files is not None else None


def check_read_once(queries: Sequence[QueryDefinition]) -> None:
    """Refuse a source that removes files which another reader of the job has yet to read."""
    reads = [(query.name, source) for query in queries for source in query.sources]
    for query, source in reads:
        option = cleaning(source)
        if option is not None and source.is_internal:
            raise ConfigError(
                f"query {query!r}: source {source.name!r} would remove what another query of the "
                f"job has published ({option}); leave cleanSource out"
            )
    for (query, source), (other, second) in itertools.combinations(reads, 2):
        option = cleaning(source) or cleaning(second)
        if option is None or not _overlap(source, second):
            continue
        where = (
            f"query {query!r} reads" if query == other else f"queries {query!r} and {other!r} read"
        )
        times = " twice" if query == other else ""
        names = " and ".join(repr(name) for name in dict.fromkeys((source.name, second.name)))
        raise ConfigError(
            f"{where} the files of source {names}{times}, and each reader would remove files "
            f"that the other has not read yet ({option}); leave cleanSource out, and remove the "
            "files when both have read them"
        )


def check_never_read_again(queries: Sequence[QueryDefinition], why: str) -> None:
    """Refuse a source that removes its files in a run which may have to read them again.

    *why* says what would read them, and the fix.
    """
    for name, source in ((query.name, each) for query in queries for each in query.sources):
        option = cleaning(source)
        if option is not None:
            raise ConfigError(
                f"query {name!r}: source {source.name!r} removes its input ({option}), {why}"
            )


def _overlap(one: SourceDefinition, two: SourceDefinition) -> bool:
    if one.name == two.name:
        return True
    locations = [*_locations(one), *_locations(two)]
    if len(locations) < len((one, two)):
        return False
    here, there = locations
    return reads_folder(here, there) or reads_folder(there, here)


def _locations(source: SourceDefinition) -> Iterator[str]:
    if source.folder is not None:
        yield location_key(source.folder)
