"""A death at a failpoint without the process: tests/crash has real ones."""

from __future__ import annotations

import contextlib
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
