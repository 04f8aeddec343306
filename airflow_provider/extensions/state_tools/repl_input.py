"""Questions of a shell: lines as statements and commands, a terminal's history; no Spark."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_HISTORY_LINES: Final = 1000


class Questions:
    """Makes questions of lines: a command is one line, a statement ends with ``;``.

    An empty line ends a statement as well.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []

    @property
    def is_open(self) -> bool:
        """Whether a statement has begun that has not ended."""
        return bool(self._lines)

    def take(self, line: str) -> str | None:
        """Return the question that ends with this line; None while it goes on, or there is none."""
        text = line.strip()
        if not self._lines and text.startswith("."):
            return text
        if text:
            self._lines.append(line.rstrip())
        if not text or text.endswith(";"):
            return self.end()
        return None

    def end(self) -> str | None:
        """Return what was begun, as it is; None when nothing was."""
        text = "\n".join(self._lines).strip().removesuffix(";").strip()
        self.forget()
        return text or None

    def forget(self) -> None:
        """Drop what was begun."""
        self._lines = []


def completions(text: str, words: Iterable[str]) -> list[str]:
    """Return the words that begin with *text*, whatever the case of its letters."""
    return sorted({word for word in words if word.lower().startswith(text.lower())})


def history_file(environ: dict[str, str] | os._Environ[str] = os.environ) -> Path | None:
    """Return where questions are kept from one shell to the next; None where there is no home."""
    state, home = environ.get("XDG_STATE_HOME"), environ.get("HOME")
    if state:
        return Path(state) / "spark-stream" / "questions"
    return Path(home) / ".local" / "state" / "spark-stream" / "questions" if home else None


@contextlib.contextmanager
def line_editing(words: Callable[[], Sequence[str]], file: Path | None) -> Iterator[None]:
    """Let a terminal's lines be edited, completed and remembered while the block runs.

    A file that cannot be read or written leaves the shell without a memory.

    Args:
        words: what a line may be completed with.
        file: the questions of earlier shells, which only their user reads.
    """
    try:
        import readline
    except ImportError:  # not every Python was built with it
        yield
        return

    def complete(text: str, number: int) -> str | None:
        found = completions(text, words())
        return found[number] if number < len(found) else None

    before = readline.get_completer()
    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n,()=<>*;")
    readline.parse_and_bind("tab: complete")
    readline.set_history_length(_HISTORY_LINES)
    if file is not None:
        with contextlib.suppress(OSError):
            readline.read_history_file(file)
    try:
        yield
    finally:
        readline.set_completer(before)
        if file is not None:
            with contextlib.suppress(OSError):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch(mode=0o600)
                readline.write_history_file(file)
