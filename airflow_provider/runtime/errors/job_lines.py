"""Lines of a job: where in its author's files an error has come from.

They are looked for in Python's tracebacks, in those of Spark's Python workers, of which only text
comes back, and in what Spark says of the call that has made a column.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# Python's own, what is installed, and what the runtime and Spark bring as a zip.
_OF_OTHERS: Final = re.compile(
    r"^<|/(site|dist)-packages/|/lib(64)?/python3(\.\d+)?/|\.zip/"
    r"|/airflow_provider/(?:extensions|runtime)/|/pyspark/|/py4j-"
)
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')
_CALL_SITE: Final = re.compile(r"was called from\s*\n(\S+):(\d+)")


def line_of(error: BaseException) -> str:
    """Return the innermost line of the job's files in a traceback, as ``sessions.py:42``.

    Args:
        error: the exception; the one that it was raised from counts when it has no such line.

    Returns:
        The line; empty when there is none, as for an error of the JVM.
    """
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, SyntaxError) and link.filename and is_of_job(link.filename):
            return place_of(link.filename, link.lineno or 1)
        frames = traceback.walk_tb(link.__traceback__)
        lines = [(frame.f_code.co_filename, number) for frame, number in frames]
        own = [line for line in lines if is_of_job(line[0])]
        if own:
            return place_of(*own[-1])
        link = link.__cause__ or link.__context__
    return ""


def line_in_text(text: str) -> str:
    """Return the line of the job's files that a message of Spark's tells of; empty for none."""
    frames = [frame for frame in _FRAME.findall(text) if is_of_job(frame[0])]
    sites = [site for site in _CALL_SITE.findall(text) if is_of_job(site[0])]
    found = frames[-1] if frames else sites[0] if sites else None
    return place_of(*found) if found is not None else ""


def definition_of(function: Callable[..., object]) -> str:
    """Return the line where a function of the job begins; empty when it is none of the job's."""
    code = getattr(function, "__code__", None)
    if code is None or not is_of_job(code.co_filename):
        return ""
    return place_of(code.co_filename, code.co_firstlineno)


def is_of_job(filename: str) -> bool:
    """Whether a file is of the job's author, as far as its place tells."""
    return _OF_OTHERS.search(Path(filename).as_posix()) is None


def place_of(filename: str, line: int | str) -> str:
    """Return a line of a file, whose path begins at the folder that Python imports it from."""
    path = PurePath(filename)
    roots = {PurePath(os.path.abspath(root)) for root in sys.path}
    below = [path.relative_to(root) for root in roots if root in path.parents]
    short = min(below, key=lambda each: len(each.parts), default=PurePath(path.name))
    return f"{short}:{line}"
