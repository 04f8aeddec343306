"""Places in a script: where it calls what, and what it must not do there; pure."""

from __future__ import annotations

import ast
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors.explanation import place_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

_WAITS: Final = frozenset({"awaitTermination", "awaitAnyTermination", "processAllAvailable"})
_STARTS: Final = frozenset({"start", "toTable"})
_STREAM: Final = "writeStream"


class CallSites:
    """Says where in a script something happens, such as ``etl.py:42``.

    Modules beside the script are named as well: many scripts keep their functions there.

    Args:
        path: the script.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()

    def here(self) -> str:
        """Return the place of the script's line that has led here, as far as there is one."""
        frame = self._frame()
        if frame is None:
            return self._path.name
        return place_of(frame.f_code.co_filename, frame.f_lineno)

    def instruction(self) -> tuple[str, int]:
        """Return that place to the instruction: one line may have several calls."""
        frame = self._frame()
        return self.here(), frame.f_lasti if frame is not None else 0

    def _frame(self) -> FrameType | None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not self._is_own(frame.f_code.co_filename):
            frame = frame.f_back
        return frame

    def of_error(self, error: BaseException) -> str:
        """Return the place of the script's last line that has led to an error."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [each for each in frames if self._is_own(each.filename)]
        if own:
            return place_of(own[-1].filename, own[-1].lineno or 0)
        if isinstance(error, SyntaxError) and error.lineno:
            return f"{self._path.name}:{error.lineno}"
        return self._path.name

    def _is_own(self, file: str) -> bool:
        if file == str(self._path):
            return True
        beside = Path(file).is_absolute() and self._path.parent in Path(file).parents
        return beside and "site-packages" not in file and "airflow_provider" not in file


def late_starts(text: str) -> list[tuple[int, int]]:
    """Return the lines that start a query behind one that waits, as far as the text shows it.

    Only statements of one block are compared: what stands in a loop, or in a function that is
    called twice, is found when it happens.

    Args:
        text: the script.

    Returns:
        Pairs: the line that starts, and the line before it that waits.

    Raises:
        SyntaxError: it is not Python.
    """
    found: list[tuple[int, int]] = []
    for block in _blocks(ast.parse(text)):
        waited = None
        for statement in block:
            begun = _line_of(statement, _STARTS, of_stream=True)
            if waited is not None and begun is not None:
                found.append((begun, waited))
            waits = _line_of(statement, _WAITS, of_stream=False)
            waited = waits if waits is not None else waited
    return sorted(set(found))


def swallowed_ends(text: str) -> list[int]:
    """Return the lines that catch whatever a wait raises, and so the end of a run that was stopped.

    Args:
        text: the script, which is Python.
    """
    return sorted(
        handler.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Try)
        and any(_line_of(each, _WAITS, of_stream=False) is not None for each in node.body)
        for handler in node.handlers
        if _catches_all(handler)
    )


def _catches_all(handler: ast.ExceptHandler) -> bool:
    named = handler.type is None or "BaseException" in ast.dump(handler.type)
    return named and not any(isinstance(each, ast.Raise) for each in ast.walk(handler))


def _blocks(tree: ast.AST) -> Iterator[Sequence[ast.stmt]]:
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(node, field, None)
            if isinstance(block, list):
                yield block


def _line_of(statement: ast.stmt, names: frozenset[str], *, of_stream: bool) -> int | None:
    """Return the line of a statement's call of one of the methods; not of what it defines."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return None
    for node in ast.walk(statement):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr not in names:
            continue
        if of_stream and not any(
            isinstance(each, ast.Attribute) and each.attr == _STREAM for each in ast.walk(node)
        ):
            continue
        return node.func.end_lineno or node.lineno
    return None
