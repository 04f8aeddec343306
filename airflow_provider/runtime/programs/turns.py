"""Turns of a script and its driver: a thread that rests where the script waits for its queries."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

_LEAVE_S: Final = 10.0  # what a script does in its ``finally`` blocks


class ScriptLeftError(BaseException):
    """Ends a script whose run was stopped, or has failed: nothing behind its wait is run."""


class Turns:
    """Lets a script run until it waits, and again when its run has published everything.

    Args:
        body: the script; called in a thread of its own.
        name: the thread's.
    """

    def __init__(self, body: Callable[[], None], name: str) -> None:
        self._body = body
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._rests = threading.Event()
        self._is_over = threading.Event()
        self._by_itself = False
        self._error: BaseException | None = None

    @property
    def has_rested(self) -> bool:
        """Tell whether the script has waited, or ended: what it declares is complete."""
        return self._rests.is_set()

    @property
    def has_this_thread(self) -> bool:
        """Tell whether the caller's thread is the script's."""
        return threading.current_thread() is self._thread

    def declare(self) -> None:
        """Run the script until it waits, or ends.

        Raises:
            BaseException: what it has raised.
        """
        self._thread.start()
        self._rests.wait()
        self._raise()

    def finish(self) -> None:
        """Let the script go on behind its wait, and end.

        Raises:
            BaseException: what it has raised, before or now.
        """
        self._by_itself = True
        self._is_over.set()
        self._thread.join()
        self._raise()

    def leave(self) -> None:
        """End a script that is not to go on; it runs its ``finally`` blocks. Idempotent."""
        self._is_over.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_LEAVE_S)
            if self._thread.is_alive():
                log.warning("%s: it has not ended in %.0f s, and is left", self.name, _LEAVE_S)

    @property
    def name(self) -> str:
        """Return what the script is called."""
        return self._thread.name

    # --- in the script's own threads --------------------------------------------------------------

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the run; return whether it has come.

        Raises:
            ScriptLeftError: the run has ended, and not by itself.
        """
        self._rests.set()
        if not self._is_over.wait(timeout_s):
            return False
        return self.is_over()

    def is_over(self) -> bool:
        """Tell whether the run has read and published everything.

        Raises:
            ScriptLeftError: it has ended otherwise.
        """
        if self._is_over.is_set() and not self._by_itself:
            raise ScriptLeftError
        return self._is_over.is_set()

    def _run(self) -> None:
        try:
            self._body()
        except ScriptLeftError:
            log.debug("%s: left", self.name)
        except SystemExit as error:
            if error.code not in {None, 0}:
                failed = RuntimeError(f"the script has ended with exit code {error.code}")
                self._error = failed.with_traceback(error.__traceback__)
        except BaseException as error:
            self._error = error
            if self._rests.is_set() and not self._is_over.is_set():
                log.warning("%s: it has failed while its queries run", self.name, exc_info=True)
        finally:
            self._rests.set()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
