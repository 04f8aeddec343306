"""Truths in pandas: the result of a plan over all its input at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from streams import START, Event, Rows, plain

if TYPE_CHECKING:
    import pandas as pd

NO_MATCH = -1
SOON_S = 5


def truth_of(plan: Mapping[str, Any], inputs: Mapping[str, list[Event]]) -> Rows:
    """Return the rows of the whole output, sorted."""
    rows = _head(plan["head"], {name: _frame(events) for name, events in inputs.items()})
    tail = _TAILS[plan["tail"]](rows, plan)
    return plain(tail.itertuples(index=False))


def _frame(events: list[Event]) -> pd.DataFrame:
    import pandas as pd  # here: half a second for whoever only collects the tests

    frame = pd.DataFrame(events, columns=["t", "k", "v"])
    return frame.assign(t=frame["t"] + START)


def _head(head: str, inputs: dict[str, pd.DataFrame]) -> pd.DataFrame:
    rows = inputs["events"]
    if head.startswith("join"):
        return _joined(rows, inputs["clicked"], head.partition(":")[2])
    return rows.drop_duplicates() if head.startswith("distinct") else rows


def _joined(shown: pd.DataFrame, clicked: pd.DataFrame, how: str) -> pd.DataFrame:
    import pandas as pd

    shown, clicked = (side.drop(columns="v").reset_index() for side in (shown, clicked))
    pairs = shown.merge(clicked, on="k", suffixes=("", "_clicked"))
    pairs = pairs[(pairs["t_clicked"] - pairs["t"]).between(0, SOON_S)]
    found = [pairs[["t", "k", "t_clicked"]]]
    if how in {"leftOuter", "fullOuter"}:
        alone = shown[~shown["index"].isin(pairs["index"])]
        found.append(alone.assign(t_clicked=NO_MATCH)[["t", "k", "t_clicked"]])
    if how in {"rightOuter", "fullOuter"}:
        alone = clicked[~clicked["index"].isin(pairs["index_clicked"])]
        found.append(alone.assign(t_clicked=alone["t"], t=NO_MATCH)[["t", "k", "t_clicked"]])
    return pd.concat(found).rename(columns={"t_clicked": "v"})


def _rows(rows: pd.DataFrame, _: Mapping[str, Any]) -> pd.DataFrame:
    return rows[["t", "k", "v"]]


def _windows(rows: pd.DataFrame, plan: Mapping[str, Any]) -> pd.DataFrame:
    import pandas as pd

    size, slide = plan["size"], plan["slide"]
    last = rows.assign(start=rows["t"] - rows["t"] % slide)  # the last window that has the row
    each = [last.assign(start=last["start"] - back) for back in range(0, size, slide)]
    spread = pd.concat(each)
    spread = spread[spread["t"] < spread["start"] + size]
    return _sums(spread.assign(end=spread["start"] + size), ["start", "end"])


def _sums(rows: pd.DataFrame, bounds: list[str]) -> pd.DataFrame:
    grouped = rows.groupby([*bounds, "k"])["v"]
    return grouped.agg(n="size", total="sum").reset_index()


def _sessions(rows: pd.DataFrame, plan: Mapping[str, Any]) -> pd.DataFrame:
    gap = plan["size"]
    rows = rows.sort_values(["k", "t"])
    # Spark lets a row still belong to the session that ends in its very moment.
    first = ~(rows.groupby("k")["t"].diff() <= gap)
    rows = rows.assign(session=first.cumsum())
    grouped = rows.groupby("session")
    rows = rows.assign(start=grouped["t"].transform("min"), end=grouped["t"].transform("max") + gap)
    return _sums(rows, ["start", "end"])


def _windows_over_windows(rows: pd.DataFrame, plan: Mapping[str, Any]) -> pd.DataFrame:
    fine = _windows(rows, plan)
    coarse = 2 * plan["size"]
    inside = fine["end"] - 1  # window_time: the last moment of the window
    fine = fine.assign(start=inside - inside % coarse)
    return fine.groupby("start")["n"].agg(groups="size", n="sum").reset_index()


def _timers(rows: pd.DataFrame, _: Mapping[str, Any]) -> pd.DataFrame:
    rows = rows.assign(start=rows["t"] - rows["t"] % 10)
    return rows.groupby(["k", "start"]).size().reset_index(name="n")


_TAILS = {
    "rows": _rows,
    "windows": _windows,
    "sessions": _sessions,
    "windows_over_windows": _windows_over_windows,
    "timers": _timers,
    "timeouts": _timers,
}
