"""Kinds of stateful operators: a row for each one of Spark's, with all that depends on it. Pure."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class StateLayout(enum.Enum):
    """The tables of a kind's state."""

    KEYED = "keyed"
    SESSIONS = "sessions"
    GROUPS = "groups"
    SIDES = "sides"
    VARIABLES = "variables"


class Setting(enum.Enum):
    """The method of a physical node that tells which rows the node keeps."""

    JOIN_TYPE = "joinType"
    TIME_MODE = "timeMode"
    TIMEOUT = "timeoutConf"


class WaitingRows(NamedTuple):
    """A part of an operator's state that waits for a watermark.

    Attributes:
        options: of Spark's state reader; None for all rows, which Spark reports with a batch.
        where: the waiting rows among them, in SQL; None for all.
        fix: what the job may lack where no watermark flushes them; empty for nothing known.
        fires_at: the column with the time at which the user's callback is called for a row, which
            may then register another one; empty for rows without a callback.
    """

    what: str
    options: Mapping[str, str] | None = None
    where: str | None = None
    fix: str = ""
    fires_at: str = ""


class InBatch(NamedTuple):
    """A reason against BATCH; *refuses* if BATCH would lose rows or fail, even when requested."""

    why: str
    refuses: bool = True


@dataclasses.dataclass(frozen=True)
class OperatorKind:
    """A kind of stateful operators, by Spark's name in a checkpoint."""

    name: str
    does: str
    layout: StateLayout = StateLayout.KEYED
    is_repartitionable: bool = True
    setting: Setting | None = None
    waiting: Mapping[str, tuple[WaitingRows, ...]] = dataclasses.field(default_factory=dict)
    node: str = ""
    in_batch: Mapping[str, InBatch] = dataclasses.field(default_factory=dict)


_AGGREGATED: Final = {"append": (WaitingRows("groups whose rows are to come"),)}

_LEFT: Final = WaitingRows("rows of its left side", {"joinSide": "left"})
_RIGHT: Final = WaitingRows("rows of its right side", {"joinSide": "right"})
# A join writes them by themselves, when no other can match them any more.
_UNMATCHED: Final = {
    "LeftOuter": (_LEFT,),
    "RightOuter": (_RIGHT,),
    "FullOuter": (_LEFT, _RIGHT),
}

_SET_EARLIER: Final = "Set timers and timeouts to an earlier time"
_TIMEOUTS: Final = {
    "EventTimeTimeout": (
        WaitingRows(
            "timeouts",
            {},
            where="value.timeoutTimestamp >= 0",
            fix=_SET_EARLIER,
            fires_at="value.timeoutTimestamp",
        ),
    )
}
_NO_TIMEOUTS: Final = InBatch("a batch job fires no timeouts, so what they emit would be lost")
_NO_GROUPS_IN_PANDAS: Final = InBatch(
    "Spark cannot run applyInPandasWithState in a batch job, where applyInPandas does it"
)

_TIMERS: Final = {
    "EventTime": (
        WaitingRows(
            "timers",
            {"readRegisteredTimers": "true"},
            fix=_SET_EARLIER,
            fires_at="expiration_timestamp_ms",
        ),
    )
}
_NO_TIMERS: Final = InBatch(
    "a batch job fires no timers, so what transformWithState emits in them would be lost"
)
_ONE_CALL: Final = InBatch(
    "transformWithState is called once for each key with all its rows, in STREAMING once for each "
    "key and batch",
    refuses=False,
)


def _transform(name: str, node: str) -> OperatorKind:
    return OperatorKind(
        name,
        "state with timers",
        StateLayout.VARIABLES,
        setting=Setting.TIME_MODE,
        waiting=_TIMERS,
        node=node,
        in_batch={"EventTime": _NO_TIMERS, "ProcessingTime": _NO_TIMERS, "NoTime": _ONE_CALL},
    )


def _groups(name: str, node: str, in_batch: InBatch) -> OperatorKind:
    return OperatorKind(
        name,
        "state of groups",
        StateLayout.GROUPS,
        setting=Setting.TIMEOUT,
        waiting=_TIMEOUTS,
        node=node,
        in_batch={"": in_batch},
    )


UNKNOWN: Final = "unknown"
"""Kind of an operator that the checkpoint does not describe; Spark has none of that name."""
JOIN: Final = "symmetricHashJoin"
AGGREGATION: Final = "stateStoreSave"
SESSIONS: Final = "sessionWindowStateStoreSaveExec"
DEDUPE: Final = "dedupe"
LIMIT: Final = "globalLimit"

KINDS: Final = (
    OperatorKind(AGGREGATION, "aggregation", waiting=_AGGREGATED),
    OperatorKind(SESSIONS, "session windows", StateLayout.SESSIONS, waiting=_AGGREGATED),
    OperatorKind(DEDUPE, "deduplication"),
    OperatorKind(
        "dedupeWithinWatermark",
        "deduplication within the watermark",
        node="DeduplicateWithinWatermark",
        in_batch={
            "": InBatch(
                "Spark cannot run dropDuplicatesWithinWatermark in a batch job, where no time "
                "passes; dropDuplicates can"
            )
        },
    ),
    OperatorKind(
        LIMIT,
        "limit",
        is_repartitionable=False,
        node="GlobalLimit",
        in_batch={
            "": InBatch(
                "a limit takes the first rows that it sees, in BATCH other ones", refuses=False
            )
        },
    ),
    OperatorKind(
        JOIN, "join of streams", StateLayout.SIDES, setting=Setting.JOIN_TYPE, waiting=_UNMATCHED
    ),
    _groups("flatMapGroupsWithState", "FlatMapGroupsWithState", _NO_TIMEOUTS),
    _groups("applyInPandasWithState", "FlatMapGroupsInPandasWithState", _NO_GROUPS_IN_PANDAS),
    _transform("transformWithStateExec", "TransformWithState"),
    _transform("transformWithStateInPandasExec", "TransformWithStateInPandas"),
    _transform("transformWithStateInPySparkExec", "TransformWithStateInPySpark"),
)
_BY_NAME: Final = {kind.name: kind for kind in KINDS}
_BY_NODE: Final = {kind.node: kind for kind in KINDS if kind.node}


def kind_named(name: str) -> OperatorKind:
    """Return the kind of a name in a checkpoint, also of one that has no row."""
    return _BY_NAME.get(name) or OperatorKind(name, "stateful operator", is_repartitionable=False)


def operator_title(name: str | None, number: int, kind: str) -> str:
    """Return the job's name for a stateful operator, else its purpose and number."""
    if name and not name.isdecimal() and name != f"op{number}":
        return name
    return f"{kind_named(kind).does} ({number})"


def kind_of_node(node: str) -> OperatorKind | None:
    """Return the kind that a class of nodes in an analyzed plan becomes, or None."""
    return _BY_NODE.get(node)
