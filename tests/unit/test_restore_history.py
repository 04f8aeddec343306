"""Which savepoints of other job directories fit the rows that a job's outputs have."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider.runtime.savepoints.history import (
    JobHistory,
    QueryHistory,
    Written,
    why_not_of_history,
)


def history(written: Written, lineage: Sequence[str]) -> JobHistory:
    return JobHistory(
        url="/job",
        lineage=lineage,
        changes={},
        open=None,
        starts=(),
        queries={"q": QueryHistory(written.query_id, [written])},
    )


def savepoint(lineage: Sequence[str], **queries: int) -> Any:
    saved = {name: SimpleNamespace(epoch=epoch) for name, epoch in queries.items()}
    record = SimpleNamespace(lineage=lineage, restores=0, queries=saved)
    return SimpleNamespace(url="/s1", record=record)


@pytest.mark.parametrize(("copied", "is_refused"), [(3, True), (-1, False)])
def test_a_query_that_began_with_rows_of_another_job_does_not_begin_again(copied, is_refused):
    """Nothing here reverts those rows, and a savepoint without the query has not read them."""
    written = Written("id", "/job/q", has_own=True, copied=copied, reverted_from=4)

    found = why_not_of_history(history(written, ["new", "old"]), savepoint(["other"]), {"q": ""})
    assert is_refused == (found is not None)
    if found is not None:
        assert "does not have the query, would let it write them again" in str(found)


@pytest.mark.parametrize(
    ("lineage", "reverted_from", "is_refused"),
    [(["new", "old"], 1, True), (["new", "old"], 2, False), (["other"], 1, False)],
)
def test_rows_that_were_reverted_are_missed_in_savepoints_of_later_versions_too(
    lineage, reverted_from, is_refused
):
    """As after a rejected version, whose savepoints have read the rows of the old one."""
    written = Written("id", "/job/q", has_own=True, reverted_from=reverted_from)

    found = why_not_of_history(history(written, ["old"]), savepoint(lineage, q=1), {"q": "q"})
    assert is_refused == (found is not None)
    if found is not None:
        assert "'q' has reverted its epochs from 1 on here" in str(found)
