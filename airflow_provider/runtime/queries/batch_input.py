"""The files that a batch job reads, in the form in which a run keeps the ends of its sources."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.checkpoint.source_end import SourceEnd, by_folder
from airflow_provider.runtime.queries.plan import named_leaves
from airflow_provider.runtime.queries.scanned_input import scanned
from airflow_provider.runtime.sources.file_stream import MOST_FILES

if TYPE_CHECKING:
    from airflow_provider.runtime.queries.query import QueryDefinition

log = logging.getLogger(__name__)

# What Java does not quote in the path of an address; letters beyond ASCII stay, too.
_QUOTED: Final = re.compile(r"[^a-zA-Z0-9_.!~'()*,;:$&+=/@\u0080-\U0010ffff-]")
_LOCAL: Final = "file:/"


def files_read(query: QueryDefinition) -> list[SourceEnd]:
    """Return the files of each source of files, listed when the job declared its query."""
    from py4j.protocol import Py4JError

    positions = {each.name: n for n, each in enumerate(query.sources) if each.files is not None}
    found: dict[str, SourceEnd] = {}
    try:
        for leaf, name in named_leaves(query.df):
            if name is None or name not in positions or name in found:
                continue
            files = leaf.relation().location().allFiles()
            if int(files.size()) > MOST_FILES:
                log.warning("query=%s source=%s: too many files to record", query.name, name)
                continue
            listed = by_folder((address_of(path), at_ms) for path, at_ms in scanned(files))
            position = positions[name]
            found[name] = SourceEnd(name, position, log=str(position), files=listed)
    except Py4JError as error:  # another version of Spark
        log.warning("query=%s: its files are not recorded: %s", query.name, error)
    return list(found.values())


def address_of(path: str) -> str:
    """Return the address of a file as Spark's log of read files writes it, from its path."""
    if path.startswith(_LOCAL):
        return f"{_LOCAL}//{_quoted(path.removeprefix(_LOCAL))}"
    head, slashes, rest = path.partition("://")
    return f"{head}{slashes}{_quoted(rest)}" if slashes else _quoted(path)


def _quoted(path: str) -> str:
    return _QUOTED.sub(lambda found: "".join(f"%{b:02X}" for b in found[0].encode()), path)
