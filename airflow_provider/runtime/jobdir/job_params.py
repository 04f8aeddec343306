"""Parameters of a job: how people give them, their values, and those that are secret."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.errors import ConfigError, redaction

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
