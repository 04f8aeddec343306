"""A script's thread, which takes turns with its driver: it pauses where the script waits."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

_LEAVE_S: Final = 10.0  # what a script does in its ``finally`` blocks
_JOIN_S: Final = 0.2
_POOL: Final = ("concurrent/futures/thread.py", "_worker")


class ScriptLeftError(BaseException):
    """Ends a script whose run was stopped or has failed, so that nothing after its wait runs."""


class _ByDefault(int):
    """The inherited ``daemon`` flag; its type distinguishes it from the script's own daemons."""


class _ScriptThread(threading.Thread):
    daemon = property(lambda _: _ByDefault(1), lambda *_: None)


class ScriptThread:
    """Lets a script run until it waits, and again when its run has published everything.

    As in Python, a script has ended when its thread and all threads that it has started have ended,
    except daemons and idle workers of a pool.
    """

    def __init__(self, body: Callable[[], None], name: str) -> None:
        self._body = body
        self._thread = _ScriptThread(target=self._run, name=name)
        # Held while a thread declares, so that no declaration falls behind the first wait unseen.
        self._lock = threading.RLock()
        self._foreign: frozenset[threading.Thread] = frozenset()
        self._rests = threading.Event()
        self._is_over = threading.Event()
        self._by_itself = False
        self._was_raised = False  # its end, in its own thread
        self._error: BaseException | None = None

    @property
    def is_waiting(self) -> bool:
        return self._rests.is_set()

    @property
    def has_this_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def declare(self) -> None:
        """Run the script until it waits or ends; raise what it has raised."""
        self._foreign = frozenset(threading.enumerate())
        self._thread.start()
        self._rests.wait()
        self._raise()

    def finish(self) -> None:
        """Let the script continue after its wait until its end; raise what it has raised."""
        self._by_itself = True
        self._is_over.set()
        self._thread.join()
        self._raise()

    def leave(self) -> None:
        """End a script that must not continue; its ``finally`` blocks run. Idempotent."""
        self._is_over.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_LEAVE_S)
            if self._thread.is_alive():
                log.warning("%s: it has not ended in %.0f s, and is left", self.name, _LEAVE_S)

    @property
    def name(self) -> str:
        return self._thread.name

    # --- in the script's own threads --------------------------------------------------------------

    @contextlib.contextmanager
    def declaration(self) -> Iterator[None]:
        """Hold off the script's first wait while one of its threads declares something."""
        with self._lock:
            self.is_over()
            yield

    def rest(self) -> None:
        """Begin the run, unless it has begun: all of the job's queries are declared."""
        with self._lock:
            self._rests.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        self.rest()
        if not self._is_over.wait(timeout_s):
            return False
        return self.is_over()

    def is_over(self) -> bool:
        if self.is_left:
            self._was_raised = self._was_raised or self.has_this_thread
            raise ScriptLeftError
        return self._is_over.is_set()

    @property
    def is_left(self) -> bool:
        return self._is_over.is_set() and not self._by_itself

    def _run(self) -> None:
        try:
            self._body()
            self._join_threads()
            if self._was_raised:
                log.error(
                    "%s: it has caught the end of its run, which was stopped or has failed, and "
                    "has gone on; catch Exception there, not BaseException",
                    self.name,
                )
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
            self.rest()

    def _join_threads(self) -> None:
        logged: set[threading.Thread] = set()
        while not self.is_left and (threads := self._own_threads()):
            if not logged.issuperset(threads):
                names = ", ".join(sorted(thread.name for thread in threads))
                log.info(
                    "%s: its last line is reached; it ends with its threads %s", self.name, names
                )
                logged.update(threads)
            threads[0].join(_JOIN_S)

    def _own_threads(self) -> list[threading.Thread]:
        found = set(threading.enumerate()) - self._foreign - {self._thread}
        return [each for each in found if each.daemon is not True and not _is_idle(each)]

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error


def _is_idle(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return False
    file, function = _POOL
    return frame.f_code.co_name == function and frame.f_code.co_filename.endswith(file)
