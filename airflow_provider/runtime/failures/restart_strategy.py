"""Restart strategies and failover regions, as in Flink: when a failed query is restarted. Pure."""

from __future__ import annotations

import abc
import dataclasses
import enum
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from airflow_provider.runtime.base.clock import parse_duration
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Iterable, Sequence


_MOST_FAILURES: Final = 1000  # kept of a rate's; more restarts than that in an interval is no rate


@dataclasses.dataclass(frozen=True)
class RestartState:
    """The history of a run's failures; ``restarts`` in ``attempts/<n>.json``.

    Invariant: moments are seconds that drivers have worked on the run, summed over its attempts. So
    machines' clocks are never compared, and time without a driver is not stable time.

    Attributes:
        restarts: the restarts granted in all, for people.
        attempts: the restarts since the delay was the initial one.
        restart_at_s: the moment of the last granted restart; None before the first.
        failures_s: the moments of the failures that may still count for a rate, oldest first.
    """

    restarts: int = 0
    attempts: int = 0
    restart_at_s: float | None = None
    failures_s: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "failures_s": list(self.failures_s)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> RestartState:
        known = {field.name for field in dataclasses.fields(cls)}
        values = {name: value for name, value in raw.items() if name in known}
        return cls(**{**values, "failures_s": tuple(raw.get("failures_s", ()))})


@dataclasses.dataclass(frozen=True)
class RestartDecision:
    """The consequence of a failure."""

    state: RestartState
    delay_s: float | None
    reason: str = ""
    is_new: bool = True

    @property
    def restarts(self) -> bool:
        return self.delay_s is not None


@dataclasses.dataclass(frozen=True)
class RestartStrategy(abc.ABC):
    """How often, and after which delays."""

    kind: ClassVar[str]

    def to_text(self) -> str:
        values = {key: getattr(self, field) for key, (field, _) in _PARAMETERS[self.kind].items()}
        texts = [f"{key}={INFINITE if v is None else v}" for key, v in values.items()]
        return f"{self.kind}({', '.join(texts)})" if texts else self.kind

    def decide(self, state: RestartState, now_s: float, *, dice: random.Random) -> RestartDecision:
        """Decide about a failure at *now_s* of the run's working time; *dice* are for jitter."""
        pending_s = state.restart_at_s
        if pending_s is not None and now_s < pending_s:
            return RestartDecision(state, pending_s - now_s, is_new=False)
        return self._on_failure(state, now_s, dice)

    @abc.abstractmethod
    def _on_failure(
        self, state: RestartState, now_s: float, dice: random.Random
    ) -> RestartDecision: ...


def _granted(state: RestartState, now_s: float, delay_s: float, **changed: Any) -> RestartDecision:
    return RestartDecision(
        dataclasses.replace(
            state, restarts=state.restarts + 1, restart_at_s=now_s + delay_s, **changed
        ),
        delay_s,
    )


@dataclasses.dataclass(frozen=True)
class NoRestart(RestartStrategy):
    """Every failure ends the attempt."""

    kind = "none"

    def _on_failure(self, state: RestartState, now_s: float, _: random.Random) -> RestartDecision:
        return RestartDecision(state, None)


@dataclasses.dataclass(frozen=True)
class FixedDelay(RestartStrategy):
    """A number of restarts, None for any number, each after the same delay."""

    kind = "fixed-delay"

    attempts: int | None = 1
    delay_s: float = 1.0

    def _on_failure(self, state: RestartState, now_s: float, _: random.Random) -> RestartDecision:
        if self.attempts is not None and state.attempts >= self.attempts:
            reason = f"all {self.attempts} restarts of {self.to_text()} are used up"
            return RestartDecision(state, None, reason)
        return _granted(state, now_s, self.delay_s, attempts=state.attempts + 1)


@dataclasses.dataclass(frozen=True)
class FailureRate(RestartStrategy):
    """Restarts unless more than a number of failures fall in the interval that ends now."""

    kind = "failure-rate"

    max_failures_per_interval: int = 1
    interval_s: float = 60.0
    delay_s: float = 1.0

    def _on_failure(self, state: RestartState, now_s: float, _: random.Random) -> RestartDecision:
        recent = [at_s for at_s in state.failures_s if now_s - at_s <= self.interval_s]
        failures = (*recent, now_s)[-_MOST_FAILURES:]
        if len(failures) > self.max_failures_per_interval:
            reason = f"{len(failures)} failures within the interval of {self.to_text()}"
            return RestartDecision(dataclasses.replace(state, failures_s=failures), None, reason)
        return _granted(
            state, now_s, self.delay_s, attempts=state.attempts + 1, failures_s=failures
        )


@dataclasses.dataclass(frozen=True)
class ExponentialDelay(RestartStrategy):
    """Restarts after growing delays, until the run has been stable for a while.

    Attributes:
        reset_backoff_threshold_s: seconds after a restart without a failure; then the delay is the
            initial one again, and no restart is used up.
        jitter_factor: the part of a delay by which it varies, so that jobs do not restart together.
        attempts_before_reset_backoff: the restarts before that; None for any number.
    """

    kind = "exponential-delay"

    initial_backoff_s: float = 1.0
    max_backoff_s: float = 60.0
    backoff_multiplier: float = 1.5
    reset_backoff_threshold_s: float = 3600.0
    jitter_factor: float = 0.1
    attempts_before_reset_backoff: int | None = None

    def _on_failure(
        self, state: RestartState, now_s: float, dice: random.Random
    ) -> RestartDecision:
        stable_s = 0.0 if state.restart_at_s is None else now_s - state.restart_at_s
        attempts = 0 if stable_s >= self.reset_backoff_threshold_s else state.attempts
        limit = self.attempts_before_reset_backoff
        if limit is not None and attempts >= limit:
            reason = f"all {limit} restarts of {self.to_text()} are used up"
            return RestartDecision(state, None, reason)
        return _granted(state, now_s, self._delay_s(attempts, dice), attempts=attempts + 1)

    def _delay_s(self, attempts: int, dice: random.Random) -> float:
        try:
            middle_s = self.initial_backoff_s * self.backoff_multiplier**attempts
        except OverflowError:
            return self.max_backoff_s
        jitter_s = middle_s * self.jitter_factor
        if middle_s - jitter_s >= self.max_backoff_s:
            return self.max_backoff_s
        delay_s = middle_s + dice.uniform(-jitter_s, jitter_s)
        return max(self.initial_backoff_s, min(delay_s, self.max_backoff_s))


INFINITE: Final = "infinite"


_FORM: Final = re.compile(r"\s*(?P<type>[\w-]+)\s*(?:\((?P<parameters>.*)\)\s*)?", re.DOTALL)
_FLINK_PREFIX: Final = "restart-strategy."
_EXAMPLE: Final = "fixed-delay(attempts=3, delay=10 seconds)"
_UNTIL_STOPPED: Final = "stopped"


def parse_restart(value: str | Mapping[str, Any]) -> RestartStrategy:
    """Read a restart strategy; a ConfigError names what is wrong and what would be right.

    *value* is ``"none"``, ``"exponential-delay"``, ``"fixed-delay(attempts=3, delay=10 seconds)"``,
    or ``{"type": "fixed-delay", "attempts": 3, "delay": "10 seconds"}``. Missing parameters have
    Flink's defaults. A mapping may have Flink's own keys, such as
    ``restart-strategy.fixed-delay.delay``.
    """
    kind, given = _of_mapping(value) if isinstance(value, Mapping) else _of_text(value)
    kind = "none" if kind in _OFF else next((n for n in _PARAMETERS if _is_same(n, kind)), kind)
    parameters = _PARAMETERS.get(kind)
    if parameters is None:
        raise ConfigError(f"restart: there is no strategy {kind!r}; use one of {_NAMES}")
    values = {}
    for key, raw in given.items():
        parameter = parameters.get(key.removeprefix(f"{kind}."))
        if parameter is None:
            names = ", ".join(parameters) or "it has none"
            raise ConfigError(f"restart: {kind} has no parameter {key!r}; its parameters: {names}")
        field, read = parameter
        values[field] = read(f"restart: {key}", raw)
    strategy = next(each for each in _STRATEGIES if each.kind == kind)(**values)
    if isinstance(strategy, ExponentialDelay):
        _check_backoffs(strategy)
    return strategy


def default_restart(until: str) -> RestartStrategy:
    """Return the strategy of a run for which none is configured."""
    return ExponentialDelay() if until == _UNTIL_STOPPED else NoRestart()


def _of_text(text: str) -> tuple[str, dict[str, Any]]:
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"restart: {text!r} is not a restart strategy; write for example {_EXAMPLE!r}"
        )
    given: dict[str, Any] = {}
    for part in filter(str.strip, (match["parameters"] or "").split(",")):
        key, equals, raw = part.partition("=")
        if not equals:
            raise ConfigError(
                f"restart: {part.strip()!r} has no value; write for example {_EXAMPLE!r}"
            )
        _add(given, _key(key), raw.strip())
    return _key(match["type"]), given


def _of_mapping(raw: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    given: dict[str, Any] = {}
    for key, value in raw.items():
        _add(given, _key(str(key)), value)
    kind = given.pop("type", None)
    if not isinstance(kind, str):
        raise ConfigError(f"restart: {dict(raw)!r} has no 'type'; use one of {_NAMES}")
    return _key(kind), given


def _key(key: str) -> str:
    return key.strip().lower().replace("_", "-").removeprefix(_FLINK_PREFIX)


def _add(given: dict[str, Any], key: str, value: Any) -> None:
    if key in given:
        raise ConfigError(f"restart: {key!r} is given twice")
    given[key] = value


def _is_same(name: str, kind: str) -> bool:
    return name.replace("-", "") == kind.replace("-", "")  # Flink takes fixeddelay, too


def _check_backoffs(strategy: ExponentialDelay) -> None:
    if strategy.initial_backoff_s > strategy.max_backoff_s:
        raise ConfigError(
            f"restart: initial-backoff ({strategy.initial_backoff_s} s) is longer than max-backoff "
            f"({strategy.max_backoff_s} s)"
        )


# --- values -------------------------------------------------------------------------------------


def _delay(name: str, raw: Any) -> float:
    return parse_duration(raw, name=name)


def _span(name: str, raw: Any) -> float:
    seconds = parse_duration(raw, name=name)
    if seconds == 0:
        raise ConfigError(f"{name}: {raw!r} is no time; use more than 0 seconds")
    return seconds


def _count(name: str, raw: Any) -> int:
    try:
        count = int(raw) if not isinstance(raw, (bool, float)) else 0
    except (TypeError, ValueError):
        count = 0
    if count < 1:
        raise ConfigError(
            f"{name}: {raw!r} is not a number of 1 or more; for no restart use 'none'"
        )
    return count


def _count_or_infinite(name: str, raw: Any) -> int | None:
    if raw is None or (isinstance(raw, str) and raw.strip().lower() == INFINITE):
        return None
    return _count(name, raw)


def _real(name: str, raw: Any, what: str, *, fits: Callable[[float], bool]) -> float:
    try:
        number = float(raw) if not isinstance(raw, bool) else float("nan")
    except (TypeError, ValueError):
        number = float("nan")
    if not fits(number):
        raise ConfigError(f"{name}: {raw!r} is not a number {what}")
    return number


def _multiplier(name: str, raw: Any) -> float:
    return _real(name, raw, "above 1", fits=lambda number: 1 < number < float("inf"))


def _part(name: str, raw: Any) -> float:
    return _real(name, raw, "from 0 to 1", fits=lambda number: 0 <= number <= 1)


_STRATEGIES: Final = (NoRestart, FixedDelay, FailureRate, ExponentialDelay)
_OFF: Final = {"off", "disable"}
_PARAMETERS: Final[Mapping[str, Mapping[str, tuple[str, Callable[[str, Any], Any]]]]] = {
    "none": {},
    "fixed-delay": {"attempts": ("attempts", _count_or_infinite), "delay": ("delay_s", _delay)},
    "failure-rate": {
        "max-failures-per-interval": ("max_failures_per_interval", _count),
        "failure-rate-interval": ("interval_s", _span),
        "delay": ("delay_s", _delay),
    },
    "exponential-delay": {
        "initial-backoff": ("initial_backoff_s", _span),
        "max-backoff": ("max_backoff_s", _span),
        "backoff-multiplier": ("backoff_multiplier", _multiplier),
        "reset-backoff-threshold": ("reset_backoff_threshold_s", _span),
        "jitter-factor": ("jitter_factor", _part),
        "attempts-before-reset-backoff": ("attempts_before_reset_backoff", _count_or_infinite),
    },
}
"""By strategy: Flink's name of each parameter, its field, and what reads its value."""
_NAMES: Final = ", ".join(_PARAMETERS)


# --- failover regions ---------------------------------------------------------------------------


class Failover(str, enum.Enum):
    """Which queries are restarted."""

    REGION = "region"  # the failed query, and those that see its uncommitted output
    FULL = "full"  # every query that has not ended


FAILOVERS: Final = tuple(each.value for each in Failover)


class Edge(NamedTuple):
    """One query reads the table that another one writes; only *committed* rows of it, or all."""

    upstream: str
    downstream: str
    committed: bool


def queries_to_restart(
    queries: Sequence[str],
    edges: Collection[Edge],
    failed: str,
    *,
    failover: Failover = Failover.REGION,
    finished: Collection[str] = (),
) -> tuple[str, ...]:
    """Return the queries that are restarted after *failed*, in the job's order.

    A query that reads only what another has committed fails apart from it: the rows that it read do
    not change. A table without epochs shows rows of batches that may run again, so its writer and
    its reader are one region and restart together.
    """
    _check(queries, [failed, *(end for edge in edges for end in edge[:2])])
    restart = queries if failover is Failover.FULL else _regions_of(queries, edges)[failed]
    return tuple(query for query in queries if query in restart and query not in finished)


def _regions_of(queries: Sequence[str], edges: Collection[Edge]) -> dict[str, frozenset[str]]:
    regions = {query: frozenset({query}) for query in queries}
    for edge in edges:
        if not edge.committed:
            merged = regions[edge.upstream] | regions[edge.downstream]
            regions |= dict.fromkeys(merged, merged)
    return regions


def _check(queries: Sequence[str], named: Iterable[str]) -> None:
    unknown = [name for name in named if name not in queries]
    if unknown:
        raise ValueError(
            f"{', '.join(map(repr, unknown))}: no query of {', '.join(map(repr, queries))}"
        )
