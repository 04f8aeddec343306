"""Options of a driver: how people give them, how they are read, and which values are refused."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import from_iso, parse_duration
from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.errors import ConfigError, redaction
from airflow_provider.runtime.errors.ways_out import of_caller
from airflow_provider.runtime.jobdir.identity import is_identity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MODES: Final = ("automatic", "streaming", "batch")
OUTPUTS: Final = ("discard", "keep")
UNTIL: Final = ("end", "available", "stopped")
AT_END: Final = ("drain", "suspend")
RETRY: Final = "retry"
MISSING_INPUT: Final = (RETRY, "fail")


@dataclasses.dataclass(frozen=True)
class Option:
    """How people give a field of a request on the command line, and what it means in one line.

    Attributes:
        flag: the argument's name, such as ``--until``; of a positional one, the field's.
        help: the line.
        argument: the operator's argument; None when operators decide it themselves.
        parse: from the argument's text, or texts, to the field's value; None when they are equal.
        how: further arguments of ``ArgumentParser.add_argument``.
    """

    flag: str
    help: str
    argument: str | None = None
    parse: Callable[[Any], Any] | None = None
    how: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def option(
    flag: str,
    text: str,
    *,
    default: Any = dataclasses.MISSING,
    argument: str | None = None,
    parse: Callable[[Any], Any] | None = None,
    **how: Any,
) -> Any:
    """Return a field of a request that the command line offers; see :class:`Option`."""
    metadata = {"option": Option(flag, text, argument, parse, how)}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def duration_option(flag: str, text: str, *, argument: str, default: float | None) -> Any:
    """Return a field of seconds, which people give as a duration such as ``10 minutes``."""
    return option(
        flag,
        text,
        default=default,
        argument=argument,
        parse=lambda value: parse_duration(value, name=flag),
        metavar="DURATION",
    )


ARGUMENTS: Final = "args"
"""The parameter of a run that a script gets as its command line."""


def with_arguments(arguments: Sequence[str]) -> str:
    """Return the command line of a script as people would write that parameter."""
    return f"{ARGUMENTS}:={json.dumps(list(arguments))}"


def parse_pairs(values: Sequence[str], option: str) -> dict[str, str]:
    """Read what was given as ``NAME=VALUE``, several times.

    Raises:
        ConfigError: one of them is not.
    """
    pairs: dict[str, str] = {}
    for value in values:
        key, separator, text = value.partition("=")
        if not separator or not key:
            msg = f"{option} {value!r}: write {option} NAME=VALUE"
            raise ConfigError(msg)
        pairs[key] = text
    return pairs


def parse_params(values: Sequence[str], option: str = "--param") -> dict[str, Any]:
    """Read parameters: ``NAME=TEXT``, or ``NAME:=JSON`` for a number, a list or any other value.

    Raises:
        ConfigError: one of them is neither.
    """
    params: dict[str, Any] = {}
    for key, text in parse_pairs(values, option).items():
        if not key.endswith(":"):
            params[key] = text
            continue
        try:
            params[key[:-1]] = read_json(text)
        except ValueError as error:
            msg = f"{option} {key}={text}: what follows := must be JSON: {error}"
            raise ConfigError(msg) from error
    return params


def check_params(params: Mapping[str, Any]) -> None:
    """Refuse a parameter that is not a value of JSON, and would reach the job as something else.

    Raises:
        ConfigError: the message names the first one.
    """
    for name, value in params.items():
        try:
            same = read_json(json.dumps({name: value}, allow_nan=False)) == {name: value}
        except (TypeError, ValueError, RecursionError):
            same = False
        if not same:
            msg = (
                f"parameter {name!r}: {type(value).__name__} {value!r:.80} is not a value of JSON "
                "(text, number, true or false, null, list, object with text keys); pass text"
            )
            raise ConfigError(msg)


def check_secret_params(params: Mapping[str, Any], secret_params: Mapping[str, str]) -> None:
    """Refuse a parameter that is given in the clear and as a secret.

    Raises:
        ConfigError: there is one.
    """
    if twice := sorted({*params} & {*secret_params}):
        msg = f"parameter {twice[0]!r} is given in the clear and as a secret; give it once"
        raise ConfigError(msg)


def read_secrets(variables: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values of secret parameters; no text that leaves this process has them.

    Args:
        variables: the environment variable of each.
        environ: the environment.

    Raises:
        ConfigError: a variable is not there.
    """
    for name, variable in variables.items():
        if variable not in environ:
            msg = (
                f"parameter {name!r} is a secret that is read from the environment variable "
                f"{variable}, which is not set; set it for this command"
            )
            raise ConfigError(msg)
    values = {name: environ[variable] for name, variable in variables.items()}
    redaction.remember(values)
    return values


def parse_interval(values: Sequence[str] | None) -> tuple[dt.datetime, dt.datetime] | None:
    """Read the start and the end of an interval, None for none; without a zone they are in UTC.

    Raises:
        ConfigError: they are not two times, or the end is before the start.
    """
    if values is None:
        return None
    given = f"{of_caller('--interval', 'interval')} {' '.join(values)}"
    try:
        start, end = (_with_zone(from_iso(each)) for each in values)
    except ValueError as error:
        msg = f"{given}: write two times such as 2026-01-01T00:00:00Z"
        raise ConfigError(msg) from error
    if end < start:
        msg = f"{given}: the end is before the start; exchange them"
        raise ConfigError(msg)
    return start, end


def _with_zone(moment: dt.datetime) -> dt.datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.timezone.utc)


def parse_target_batch_time(value: str | float | None) -> float | None:
    """Read a target time: a duration, ``off`` (0), or None for the default.

    Raises:
        ConfigError: it is neither.
    """
    if value is None:
        return None
    if value == "off":
        return 0.0
    seconds = parse_duration(value, name="target batch time")
    if seconds == 0:
        msg = f"target batch time {value!r}: more than 0, or 'off'"
        raise ConfigError(msg)
    return seconds


def check_run_options(mode: str, until: str | None, at_end: str | None) -> None:
    """Refuse words that are not in the interface; the operator calls this when the DAG is parsed.

    Raises:
        ConfigError: the message lists those that are.
    """
    _check_word("mode", mode, MODES)
    _check_word("until", until, (*UNTIL, None))
    _check_word("at_end", at_end, (*AT_END, None))
    if mode == "batch" and (until not in {"end", None} or at_end not in {"drain", None}):
        msg = (
            f"mode 'batch' reads everything and ends, so until={until!r}, at_end={at_end!r} cannot "
            "be had; leave them out, or use mode 'streaming'"
        )
        raise ConfigError(msg)


def check_replaces_job(identity: str | None) -> None:
    """Refuse what is no identity of a job directory.

    Raises:
        ConfigError: the message says where an identity is found.
    """
    if identity is not None and not is_identity(identity):
        msg = (
            f"replaces_job {identity!r}: the identity of a lost job directory, as the refusal of "
            "the new one says it, and as the lost identity.json had it"
        )
        raise ConfigError(msg)


def check_begins_from(savepoint: str | None, state_partitions: int | None) -> None:
    """Refuse impossible partitions; the operator calls this when the DAG is parsed.

    Raises:
        ConfigError: there is no savepoint, or there cannot be so many.
    """
    if state_partitions is None:
        return
    check_partitions(state_partitions)
    if savepoint is None:
        msg = (
            "state_partitions goes with a savepoint to begin from; a job that has begun keeps "
            "those that it has"
        )
        raise ConfigError(msg)


def _check_word(name: str, value: str | None, allowed: Sequence[str | None]) -> None:
    if value not in allowed:
        words = ", ".join(repr(word) for word in allowed if word is not None)
        msg = f"{name} {value!r}: use one of {words}"
        raise ConfigError(msg)


MAX_PARTITIONS: Final = 32_768
"""As in Flink. Each is a task of every batch and a folder of every stateful operator; far above it
Spark fails only when everything is copied, or its driver has no memory left to plan a batch."""


def check_partitions(partitions: int | None) -> None:
    """Refuse a number that cannot be one of partitions.

    Raises:
        ConfigError: it is less than 1, or more than :data:`MAX_PARTITIONS`.
    """
    if partitions is not None and not 1 <= partitions <= MAX_PARTITIONS:
        msg = f"partitions {partitions}: state has from 1 to {MAX_PARTITIONS} partitions"
        raise ConfigError(msg)
