"""A death at a failpoint without the process: tests/crash has real ones."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator

import pytest

from airflow_provider.runtime.base import failpoints


class DeathError(BaseException):
    """Passes every handler of errors, as ``kill -9`` does."""


@contextlib.contextmanager
def dies_at(step: str) -> Iterator[None]:
    """Let the block die at a failpoint; it is an error if it does not."""

    def die(name: str) -> None:
        if name == step:
            raise DeathError(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "hit", die)
        with pytest.raises(DeathError):
            yield


@contextlib.contextmanager
def failing_after(
    hits: int | None, error: type[BaseException], passed: set[str] | None = None
) -> Iterator[None]:
    """Raise *error* at a failpoint, after so many; the names of all that are passed go to *passed*.

    Only the main thread can die alone: another one gets an OSError.
    """
    left, main_thread = itertools.count(1), threading.current_thread()

    def hit(name: str) -> None:
        if passed is not None:
            passed.add(name)
        if next(left) == hits:
            raise (error if threading.current_thread() is main_thread else OSError)(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "hit", hit)
        yield
