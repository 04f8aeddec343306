"""Sources of files that were moved: Spark plans the last batch again, with the folder of now."""

from __future__ import annotations

import urllib.parse
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.queries.output_locations import location_key
from airflow_provider.runtime.sources.path_patterns import is_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.sources.declared import SourceDefinition

    FilesBySource = Mapping[str, Sequence[str]]

_BASE: Final = "basepath"


def why_moved(query: QueryDefinition, last: Callable[[], FilesBySource]) -> str | None:
    """Return why Spark could not start a query whose folders are others now; None if it can.

    Args:
        query: the query as it is declared.
        last: returns by source the files of its last planned batch. Spark makes a plan of them at
            each start, and refuses those that do not lie in the folder of now. A pattern has no
            such folder, and neither has a source of which that batch has read nothing.
    """
    folders = {each.name: str(each.folder) for each in query.sources if _has_folder(each)}
    found = last() if folders else {}
    for name, folder in folders.items():
        within = f"{location_key(folder)}/"
        for address in found.get(name, ()):
            if not f"{location_key(urllib.parse.unquote(address))}/".startswith(within):
                return (
                    f"source {name!r} reads {folder} now, and its last batch has read {address}, "
                    "which Spark plans again and does not find there; keep the folder until a "
                    "batch has read none of its files, or read the new one under another name"
                )
    return None


def _has_folder(source: SourceDefinition) -> bool:
    files = source.files
    if files is None or files.path is None or files.may_be_missing or is_pattern(files.path):
        return False
    has_base = any(option.lower() == _BASE for option in files.options)
    return not (has_base or source.is_internal or source.ended)
