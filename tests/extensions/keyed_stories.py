"""Random stories of a table by key, against the model: late changes, deletes, deaths, reverts."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import pytest
from hypothesis import strategies as st

from airflow_provider.runtime.api.sinks import Committable, OpenFence
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import RefusedRowsError
from tests.extensions.keyed_support import Change, ConflictError, KeyedModel


class KeyedTable(Protocol):
    """A table of a kind, empty at its begin."""

    def open(self) -> Any:
        """Return a new sink object, as another process has one."""

    def stage(self, epoch: int, changes: Sequence[Change], query_id: str) -> Committable: ...

    def rows(self) -> list[tuple[Any, ...]]: ...

    def compact(self) -> None:
        """Move the rows to other files, as another program does."""


class Death(BaseException):
    """Stands for a ``kill -9``: no handler of the sink sees it."""


@dataclasses.dataclass(frozen=True)
class Epoch:
    """An epoch, by our query or another one, that dies at the n-th step of its commit."""

    changes: tuple[Change, ...]
    dies_at: int
    is_others: bool = False


@dataclasses.dataclass(frozen=True)
class Revert:
    """A revert of the last epochs of our query, that dies at the n-th step."""

    epochs: int
    dies_at: int


COMPACT = "compact"
Step = Epoch | Revert | str
_NEVER = 99

# Mostly one change has a sequence, because sources repeat themselves; a variant conflicts.
_changes = st.builds(
    lambda id_, at, variant: Change(id_, at, f"{at}{variant}", at % 3 == len(variant) + 1),
    st.integers(0, 2),
    st.integers(0, 11),
    st.sampled_from(("", "", "", "", "", "", "", "", "", "'")),
)
_deaths = st.sampled_from((_NEVER, _NEVER, 1, 2, 3, 4))
_epochs = st.builds(
    lambda changes, dies, others: Epoch(tuple(changes), dies, others),
    st.lists(_changes, min_size=1, max_size=4),
    _deaths,
    st.sampled_from((False, False, False, False, True)),
)
_reverts = st.builds(Revert, st.integers(1, 3), _deaths)
_steps = st.one_of(_epochs, _epochs, _epochs, _epochs, _reverts, st.just(COMPACT))
stories = st.lists(_steps, min_size=5, max_size=14)


class Story:
    """Plays the steps of a story on a table, and on the model."""

    def __init__(self, table: KeyedTable) -> None:
        self._table, self._model = table, KeyedModel()
        self._ours, self._theirs = str(uuid.uuid4()), str(uuid.uuid4())
        self._next = {False: 0, True: 0}
        self._published: list[tuple[Committable, dict[int, Change]]] = []

    def play(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, Epoch):
                self._epoch(step)
            elif isinstance(step, Revert):
                self._revert(step)
            else:
                self._table.compact()
            assert self._model.rows() == self._table.rows(), step

    def _epoch(self, step: Epoch) -> None:
        before, number = self._model.newest, self._next[step.is_others]
        query_id = self._theirs if step.is_others else self._ours
        self._next[step.is_others] += 1
        try:
            self._model.apply(step.changes)
        except ConflictError:
            self._refused(number, step.changes, query_id)
            return
        committable = self._table.stage(number, step.changes, query_id)
        with dying(step.dies_at), contextlib.suppress(Death):
            self._table.open().commit(committable, OpenFence())
        for _ in range(2):  # what a next start does, and once more
            self._table.open().recover(query_id, lambda *_: False, OpenFence())
            self._table.open().commit(committable, OpenFence())
        if step.is_others:
            self._published = []  # theirs may have replaced what ours have written
        else:
            self._published.append((committable, before))

    def _refused(self, number: int, changes: Sequence[Change], query_id: str) -> None:
        """The table is unchanged, whether the epoch or the table has the other change."""
        with pytest.raises(RefusedRowsError, match="id = "):
            self._publish(number, changes, query_id)

    def _publish(self, number: int, changes: Sequence[Change], query_id: str) -> None:
        committable = self._table.stage(number, changes, query_id)
        try:
            self._table.open().commit(committable, OpenFence())
        finally:
            self._table.open().abort(committable)

    def _revert(self, step: Revert) -> None:
        taken = self._published[-step.epochs :]
        if not taken:
            return
        committables = [committable for committable, _ in reversed(taken)]
        self._table.open().check_revert(committables)
        with dying(step.dies_at), contextlib.suppress(Death):
            self._table.open().revert(committables, OpenFence())
        for _ in range(2):
            self._table.open().revert(committables, OpenFence())
        self._model.newest = taken[0][1]
        self._published = []  # a restored query has a new id, and continues the epochs
        self._ours = str(uuid.uuid4())


@contextlib.contextmanager
def dying(at: int) -> Iterator[None]:
    """Let this process die at the n-th failpoint or file that it writes beside the table."""
    from airflow_provider.runtime.sinks.keyed_store import KeyStore

    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == at:
            raise Death

    def after(method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            made = method(*args, **named)
            step()
            return made

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "hit", lambda _: step())
        for name in ("put_tombstones", "put_change"):
            patch.setattr(KeyStore, name, after(getattr(KeyStore, name)))
        yield
