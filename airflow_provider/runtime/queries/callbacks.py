"""Callbacks of a job's function, which the driver calls at the stages of an attempt."""

from __future__ import annotations

from collections.abc import Callable

Callback = Callable[[], None]


class Callbacks:
    """What a job wants to be called, by stage; the callbacks of a stage in the job's order."""

    def __init__(self) -> None:
        self._on_finish: list[Callback] = []
        self._on_published: list[Callback] = []
        self._on_poll: list[Callback] = []
        self._on_close: list[Callback] = []

    def on_finish(self, callback: Callback) -> None:
        """Call *callback* when the job has produced its last row: only after a drain.

        It runs before the last epochs are published and the final checkpoint is put. It is called
        once in an attempt; an attempt that dies between the call and the final checkpoint is
        followed by one that calls it again.
        """
        self._on_finish.append(callback)

    def on_published(self, callback: Callback) -> None:
        """Call *callback* when a run that was not stopped has published all its output.

        It runs before the final checkpoint is written: if the attempt dies meanwhile, or the
        callback fails, the next attempt calls it again.
        """
        self._on_published.append(callback)

    def on_poll(self, callback: Callback) -> None:
        """Call *callback* about once a second while the queries run; its error ends the attempt.

        It is also called, the last time, when everything is published.
        """
        self._on_poll.append(callback)

    def on_close(self, callback: Callback) -> None:
        """Call *callback* at the end of every attempt, however it ends, unless it is killed."""
        self._on_close.append(callback)

    def finish(self) -> None:
        for callback in self._on_finish:
            callback()

    def published(self, *, by_itself: bool) -> None:
        for callback in self._on_published if by_itself else ():
            callback()
        self.poll()

    def poll(self) -> None:
        for callback in self._on_poll:
            callback()

    def close(self) -> list[Exception]:
        """Call all ``on_close`` callbacks, for the driver; return what they raised."""
        errors: list[Exception] = []
        for callback in self._on_close:
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - the others must be called too
                errors.append(error)
        return errors
