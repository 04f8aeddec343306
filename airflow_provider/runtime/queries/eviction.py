"""Sides of a join of streams whose rows no watermark moves out of the state.

An outer join writes a row without a match when its watermark moves it out. Spark's check before the
start asks whether the condition bounds one side by the watermark of the other one; its join then
also needs a watermark on the side itself. So Spark is asked here as when it plans a batch: by which
predicate do rows of a side leave, at two watermarks. If that is missing, or stays, the rows stay.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.spark.versions import join_predicates

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

log = logging.getLogger(__name__)

_DELAY: Final = "spark.watermarkDelayMs"
_WATERMARKS_MS: Final = (2**41, 2**42)
_SIDES: Final = ("left", "right")
_WAITING: Final = {
    "LeftOuter": ("left",),
    "RightOuter": ("right",),
    "FullOuter": _SIDES,
}
"""By Spark's type of a join, the sides whose rows are written without a match."""


def stuck_sides(jvm: Any, join: Any, sources: Sequence[Iterable[str | None]]) -> tuple[str, ...]:
    """Return for each side of a physical join why its rows without a match are never written."""
    from py4j.protocol import Py4JError

    waiting = _WAITING.get(str(join.joinType()), ())
    if not waiting:
        return ()
    try:
        lower, higher = (join_predicates(jvm, join, at_ms) for at_ms in _WATERMARKS_MS)
    except Py4JError as error:
        log.debug("when the rows of a join leave its state is not known: %s", error)
        return ()
    plans = {"left": join.left(), "right": join.right()}
    unmarked = next((side for side in _SIDES if not _has_watermark(plans[side])), None)
    found = []
    for side, read in zip(_SIDES, sources, strict=True):
        before, later = getattr(lower, side)(), getattr(higher, side)()
        moves = before.isDefined() and str(before.get()) != str(later.get())
        if side in waiting and not moves:
            names = ", ".join(sorted(name for name in read if name is not None)) or "unknown"
            found.append(_reason(side, names, unmarked))
    return tuple(found)


def _has_watermark(plan: Any) -> bool:
    columns = plan.output()
    return any(columns.apply(i).metadata().contains(_DELAY) for i in range(columns.size()))


def _reason(side: str, sources: str, unmarked: str | None) -> str:
    what = f"rows of its {side} side (source {sources}) that have no match are never written"
    if unmarked is not None:
        whose = "that side" if unmarked == side else f"the {unmarked} side"
        return (
            f"{what}, because {whose} has no watermark: give its source one, watermark=(COLUMN, "
            "DELAY), and let ON bound the event times of both sides"
        )
    return (
        f"{what}, because ON does not say until when they can match: let it bound the event times "
        "of both sides, as in one.t BETWEEN two.t - INTERVAL 1 HOUR AND two.t + INTERVAL 1 HOUR, "
        "and compare no other column there with < or > (join the rows that meet it, and union the "
        "others)"
    )
