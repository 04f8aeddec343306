"""Batch sizing: how large the next batch may be so that it takes about a target time; pure.

A batch takes a fixed time, whatever it reads, and a time that grows with what it reads. Both are
learnt from the last batches; the next one is given as much as fits into the target.
"""

from __future__ import annotations

import dataclasses
import enum
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

THRESHOLD: Final = 0.25  # Flink's: a limit this near to the right one is left as it is
SAMPLES: Final = 20  # Flink's, too; older batches tell of another load
NEAR: Final = "within 25 % of the target"
GROWTH: Final = 8.0  # per batch: what few rows took tells little of what many will take
BINDING: Final = 0.5  # files are not divided, so a batch that fills its limit may lie below it
OVERSHOOT: Final = 1.5  # a batch so far beyond its limit was not held by it
IGNORED: Final = 2  # batches in a row beyond their limit: the source does not keep to it
_RISK: Final = 2.0  # times the target that a larger batch may take at worst, were no time fixed
_SHORTEST_S: Final = 1e-3  # a batch, however coarse the clock; rates are divided by it
_SURPRISE: Final = 1.5  # a batch that takes so many times what was expected: the load has changed
_PROBE: Final = 2.0  # times the size, where nothing smaller has had an effect
_SPREAD: Final = 2.0  # sizes nearer to each other cannot tell what of their time is fixed
_FADE_FIXED: Final = 0.8  # weight of a batch's size in the fixed time, per batch that follows
_FADE_RATE: Final = 0.5  # the same in the time per row, which changes sooner


class PacingDecision(str, enum.Enum):
    """The change of the limits after a batch."""

    UNCHANGED = "unchanged"
    GROW = "grows"
    SHRINK = "shrinks"


@dataclasses.dataclass(frozen=True)
class Step:
    """The size of the next batch in relation to the last one.

    Attributes:
        factor: 1 for the largest allowed size.
        reason: for people.
    """

    decision: PacingDecision
    factor: float
    reason: str


class BatchSizeController:
    """Learns what a query's batches cost and sizes the next one.

    Args:
        target_s: how long a batch should take.
    """

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES)
        self._fixed_s = 0.0
        self._per_unit_s = 0.0
        self._is_warm = False
        self._outgrown = 0.0  # the size that a batch was last said to be too small at

    @property
    def fixed_s(self) -> float:
        """Return the known part of a batch's time that does not depend on its size."""
        return self._fixed_s

    def predict(self, size: float) -> float:
        """Return how long a batch of *size* should take; 0 before the first one."""
        return self._fixed_s + self._per_unit_s * size

    def observe(self, size: float, seconds: float, *, limited: bool) -> Step:
        """Take a batch into account.

        Args:
            size: what it has read; more than 0, always in the same measure.
            seconds: how long it took.
            limited: whether its limit has kept it from reading more.
        """
        seconds = max(seconds, _SHORTEST_S)
        too_long = seconds > self._target_s * (1 + THRESHOLD)
        if not limited and not too_long:
            return Step(PacingDecision.UNCHANGED, 1.0, "no more input")
        self._learn(size, seconds)
        factor = (self._aim_s() - self._fixed_s) / self._per_unit_s / size
        if abs(1 / factor - 1) <= THRESHOLD:
            return Step(PacingDecision.UNCHANGED, 1.0, NEAR)
        if factor < 1:
            return Step(PacingDecision.SHRINK, factor, self._why("longer"))
        if not limited:
            return Step(PacingDecision.UNCHANGED, 1.0, "one batch was slow, the last ones were not")
        safe = max(_RISK * self._target_s / self.predict(size), 1.0)
        wanted = max(factor, _PROBE) if self._is_stuck(size) else factor
        self._outgrown = size
        return Step(PacingDecision.GROW, min(wanted, GROWTH, safe), self._why("shorter"))

    def _is_stuck(self, size: float) -> bool:
        """Whether a batch should have grown and did not, as with large files.

        Its fixed part then stays unknown, and with it whether twice the size fits.
        """
        return size <= self._outgrown and not self._is_spread()

    def _aim_s(self) -> float:
        """Return the target, or more where less than half of it would be left for the rows.

        Smaller batches would hardly be faster, and the query would fall behind.
        """
        return max(self._target_s, self._fixed_s + self._target_s / 2)

    def _why(self, how: str) -> str:
        if self._aim_s() > self._target_s:
            return f"out of reach: {self._fixed_s:.1f} s of a batch do not depend on its size"
        return f"batches took {how} than the target"

    def _learn(self, size: float, seconds: float) -> None:
        if len(self._samples) == 1 and not self._is_warm:
            self._is_warm = True
            self._samples.clear()  # the first batch also compiles and starts what the others use
        if len(self._samples) > 1 and self._is_surprised(size, seconds):
            self._samples.clear()
        self._samples.append((size, seconds))
        self._fixed_s = self._fit_fixed()
        weights = _fading(_FADE_RATE, len(self._samples))
        self._per_unit_s = sum(
            weight * (taken - self._fixed_s) / read
            for weight, (read, taken) in zip(weights, self._samples, strict=True)
        )

    def _is_surprised(self, size: float, seconds: float) -> bool:
        expected = self.predict(size)
        return not expected / _SURPRISE <= seconds <= expected * _SURPRISE

    def _is_spread(self) -> bool:
        sizes = [size for size, _ in self._samples]
        return max(sizes) >= _SPREAD * min(sizes)

    def _fit_fixed(self) -> float:
        fastest = min(seconds for _, seconds in self._samples)
        known = min(self._fixed_s, fastest / 2)
        if not self._is_spread():
            return known
        weights = _fading(_FADE_FIXED, len(self._samples))
        points = list(zip(weights, self._samples, strict=True))
        mean_size = sum(weight * size for weight, (size, _) in points)
        mean_s = sum(weight * seconds for weight, (_, seconds) in points)
        spread = sum(weight * (size - mean_size) ** 2 for weight, (size, _) in points)
        slope = sum(w * (size - mean_size) * (s - mean_s) for w, (size, s) in points) / spread
        if slope <= 0:
            return known  # the load is changing: a smaller batch was not the faster one
        return min(max(mean_s - slope * mean_size, 0.0), fastest * 0.9)


def _fading(by: float, count: int) -> list[float]:
    """Return *count* weights, the last the heaviest, that sum to 1."""
    weights = [by ** (count - 1 - position) for position in range(count)]
    return [weight / sum(weights) for weight in weights]


# --- the limits of a query's sources ------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Limit:
    """The most that one source may read in a batch.

    Attributes:
        amount: how much, in *unit*.
        unit: ``rows``, ``bytes`` or ``files``.
        ceiling: the job's own limit, never exceeded; None if it has none.
        ignored: batches in a row that exceeded it, as far as is known.
    """

    amount: int
    unit: str
    ceiling: int | None = None
    ignored: int = 0

    @property
    def is_ignored(self) -> bool:
        """Whether the source exceeds its limit, or does not show that it keeps it."""
        return self.ignored >= IGNORED


@dataclasses.dataclass(frozen=True)
class Load:
    """The input of a batch from one source; None where unknown."""

    rows: int = 0
    bytes: int | None = None
    files: int | None = None

    def measure(self, unit: str) -> int | None:
        """Return the amount in *unit*."""
        return {"rows": self.rows, "bytes": self.bytes, "files": self.files}[unit]

    def __add__(self, other: Load) -> Load:
        """Return the sum: a source may be scanned twice."""
        return Load(
            self.rows + other.rows,
            _sum(self.bytes, other.bytes),
            _sum(self.files, other.files),
        )


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


@dataclasses.dataclass(frozen=True)
class BatchLimits:
    """The limits for the next batch, and why.

    Attributes:
        limits: by source.
    """

    decision: PacingDecision
    reason: str
    limits: Mapping[str, Limit]


def next_pace(
    controller: BatchSizeController,
    limits: Mapping[str, Limit],
    loads: Mapping[str, Load],
    seconds: float,
) -> BatchLimits:
    """Return the limits for the batch after one that has read *loads* in *seconds*.

    All sources of a query share its batches, so the cost of a batch is learnt by its rows, and all
    limits change by the same factor.
    """
    held = {name: _mark(limit, loads.get(name, Load())) for name, limit in limits.items()}
    rows = sum(load.rows for load in loads.values())
    if rows == 0:
        return BatchLimits(PacingDecision.UNCHANGED, "the batch read nothing", held)
    full = {name for name, limit in held.items() if _is_full(limit, loads.get(name, Load()))}
    step = controller.observe(rows, seconds, limited=bool(full))
    if step.decision is PacingDecision.UNCHANGED:
        return BatchLimits(step.decision, step.reason, held)
    if step.decision is PacingDecision.SHRINK and _is_indivisible(held, loads):
        reason = f"a batch is at least one file, and one takes {seconds:.1f} s"
        return BatchLimits(PacingDecision.UNCHANGED, reason, held)
    changed = {
        name: _scale(limit, loads.get(name, Load()), step.factor) for name, limit in held.items()
    }
    least = THRESHOLD if 1 < step.factor < _PROBE else 0.0
    if all(abs(changed[name].amount / now.amount - 1) <= least for name, now in held.items()):
        at_ceiling = any(limit.amount == limit.ceiling for limit in changed.values())
        reason = "at the job's own limit" if at_ceiling else "as near as whole rows and files allow"
        return BatchLimits(PacingDecision.UNCHANGED, reason, held)
    return BatchLimits(step.decision, step.reason, changed)


def _mark(limit: Limit, load: Load) -> Limit:
    size = load.measure(limit.unit)
    if size is None:
        return limit if not load.rows else dataclasses.replace(limit, ignored=IGNORED)
    beyond = size > OVERSHOOT * limit.amount and load.files != 1
    return dataclasses.replace(limit, ignored=limit.ignored + 1 if beyond else 0)


def _is_full(limit: Limit, load: Load) -> bool:
    return (load.measure(limit.unit) or 0) >= BINDING * limit.amount


def _is_indivisible(limits: Mapping[str, Limit], loads: Mapping[str, Load]) -> bool:
    read = [load for name, load in loads.items() if name in limits and load.rows]
    return bool(read) and all(load.files == 1 for load in read)


def _scale(limit: Limit, load: Load, factor: float) -> Limit:
    size = load.measure(limit.unit)
    if not size:
        return limit
    amount = max(round(size * factor), 1)
    if factor > 1:
        amount = max(amount, limit.amount)  # a source that had no more is not held back for it
    if limit.ceiling is not None:
        amount = min(amount, limit.ceiling)
    return dataclasses.replace(limit, amount=amount)
