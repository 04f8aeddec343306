"""The one parser of restart strategies.

``"fixed-delay(attempts=3, delay=10 seconds)"``, or the same as a mapping. Types and parameters have
Flink's names, so that its configuration can be copied.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.clock import parse_duration
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.restarting.strategies import (
    INFINITE,
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartStrategy,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_FORM: Final = re.compile(r"\s*(?P<type>[\w-]+)\s*(?:\((?P<parameters>.*)\)\s*)?", re.DOTALL)
_FLINK_PREFIX: Final = "restart-strategy."
_EXAMPLE: Final = "fixed-delay(attempts=3, delay=10 seconds)"
_UNTIL_STOPPED: Final = "stopped"


@dataclasses.dataclass(frozen=True)
class _Type:
    make: type[RestartStrategy]
    parameters: Mapping[str, tuple[str, Callable[[str, Any], Any]]]


def parse_restart(value: str | Mapping[str, Any]) -> RestartStrategy:
    """Read a restart strategy.

    Args:
        value: ``"none"``, ``"exponential-delay"``, ``"fixed-delay(attempts=3, delay=10 seconds)"``,
            or ``{"type": "fixed-delay", "attempts": 3, "delay": "10 seconds"}``. What is left out
            has Flink's default. Flink's own keys, such as ``restart-strategy.fixed-delay.delay``,
            will do in a mapping.

    Raises:
        ConfigError: it is none; the message names what is wrong and what would be right.
    """
    kind, given = _of_mapping(value) if isinstance(value, Mapping) else _of_text(value)
    known = _TYPES.get(kind.replace("-", ""))
    if known is None:
        names = ", ".join(repr(name) for name in TYPE_NAMES)
        msg = f"restart: there is no strategy {kind!r}; use one of {names}"
        raise ConfigError(msg)
    values = {}
    for key, raw in given.items():
        parameter = known.parameters.get(key.removeprefix(f"{kind}."))
        if parameter is None:
            names = ", ".join(known.parameters) or "it has none"
            msg = f"restart: {kind} has no parameter {key!r}; its parameters: {names}"
            raise ConfigError(msg)
        field, read = parameter
        values[field] = read(f"restart: {key}", raw)
    strategy = known.make(**values)
    if isinstance(strategy, ExponentialDelay):
        _check_backoffs(strategy)
    return strategy


def default_restart(until: str) -> RestartStrategy:
    """Return the strategy of a run for which none is asked.

    Args:
        until: a run that goes on until it is ``stopped`` has Flink's default, which restarts any
            number of times; one that ends by itself none, because whoever has started it waits for
            its end, and has retries.
    """
    return ExponentialDelay() if until == _UNTIL_STOPPED else NoRestart()


def _of_text(text: str) -> tuple[str, dict[str, Any]]:
    match = _FORM.fullmatch(text)
    if match is None:
        msg = f"restart: {text!r} is not a restart strategy; write for example {_EXAMPLE!r}"
        raise ConfigError(msg)
    given: dict[str, Any] = {}
    for part in filter(str.strip, (match["parameters"] or "").split(",")):
        key, equals, raw = part.partition("=")
        if not equals:
            msg = f"restart: {part.strip()!r} has no value; write for example {_EXAMPLE!r}"
            raise ConfigError(msg)
        _add(given, _key(key), raw.strip())
    return _key(match["type"]), given


def _of_mapping(raw: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    given: dict[str, Any] = {}
    for key, value in raw.items():
        _add(given, _key(str(key)), value)
    kind = given.pop("type", None)
    if not isinstance(kind, str):
        msg = f"restart: {dict(raw)!r} has no 'type'; use one of {', '.join(TYPE_NAMES)}"
        raise ConfigError(msg)
    return _key(kind), given


def _key(key: str) -> str:
    return key.strip().lower().replace("_", "-").removeprefix(_FLINK_PREFIX)


def _add(given: dict[str, Any], key: str, value: Any) -> None:
    if key in given:
        msg = f"restart: {key!r} is given twice"
        raise ConfigError(msg)
    given[key] = value


def _check_backoffs(strategy: ExponentialDelay) -> None:
    if strategy.initial_backoff_s > strategy.max_backoff_s:
        msg = (
            f"restart: initial-backoff ({strategy.initial_backoff_s} s) is longer than max-backoff "
            f"({strategy.max_backoff_s} s)"
        )
        raise ConfigError(msg)


# --- values -------------------------------------------------------------------------------------


def _delay(name: str, raw: Any) -> float:
    return parse_duration(raw, name=name)


def _span(name: str, raw: Any) -> float:
    seconds = parse_duration(raw, name=name)
    if seconds == 0:
        msg = f"{name}: {raw!r} is no time; use more than 0 seconds"
        raise ConfigError(msg)
    return seconds


def _count(name: str, raw: Any) -> int:
    try:
        count = int(raw) if not isinstance(raw, (bool, float)) else 0
    except (TypeError, ValueError):
        count = 0
    if count < 1:
        msg = f"{name}: {raw!r} is not a number of 1 or more; for no restart use 'none'"
        raise ConfigError(msg)
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
        msg = f"{name}: {raw!r} is not a number {what}"
        raise ConfigError(msg)
    return number


def _multiplier(name: str, raw: Any) -> float:
    return _real(name, raw, "above 1", fits=lambda number: 1 < number < float("inf"))


def _part(name: str, raw: Any) -> float:
    return _real(name, raw, "from 0 to 1", fits=lambda number: 0 <= number <= 1)


_NONE: Final = _Type(NoRestart, {})
_TYPES: Final[Mapping[str, _Type]] = {
    **dict.fromkeys(("none", "off", "disable"), _NONE),
    "fixeddelay": _Type(
        FixedDelay,
        {"attempts": ("attempts", _count_or_infinite), "delay": ("delay_s", _delay)},
    ),
    "failurerate": _Type(
        FailureRate,
        {
            "max-failures-per-interval": ("max_failures_per_interval", _count),
            "failure-rate-interval": ("interval_s", _span),
            "delay": ("delay_s", _delay),
        },
    ),
    "exponentialdelay": _Type(
        ExponentialDelay,
        {
            "initial-backoff": ("initial_backoff_s", _span),
            "max-backoff": ("max_backoff_s", _span),
            "backoff-multiplier": ("backoff_multiplier", _multiplier),
            "reset-backoff-threshold": ("reset_backoff_threshold_s", _span),
            "jitter-factor": ("jitter_factor", _part),
            "attempts-before-reset-backoff": (
                "attempts_before_reset_backoff",
                _count_or_infinite,
            ),
        },
    ),
}
TYPE_NAMES: Final = ("none", "fixed-delay", "failure-rate", "exponential-delay")
