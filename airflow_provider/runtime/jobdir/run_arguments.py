"""Keyword arguments of a run's options, for type checkers.

``scripts/document_schemas.py`` writes this module from :class:`.RunOptions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class RunArguments(TypedDict, total=False):
    """The options of a run, as a DAG file or a test gives them."""

    mode: str
    until: str | None
    at_end: str | None
    trigger: str | float | None
    target_batch_time: str | float | None
    allow_non_restored_state: bool
    allow_mixed_results: bool
    allow_known_bugs: Sequence[str] | None
    replayable_runs: int | None
    restart: str | Mapping[str, Any] | None
    failover: str
    fails_as: Mapping[str, str] | None
    late: str
    late_limit: str | int | None
    missing_input: str
