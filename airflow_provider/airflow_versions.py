"""Names and abilities of Airflow that not all of its versions have, or have elsewhere.

The rest of this package asks here for an ability, never for a version. docs/versions.md has the
table for users.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow.sdk import BaseXCom, RetryDecision, RetryPolicy
    from airflow.sdk.bases.decorator import determine_kwargs
    from airflow.sdk.configuration import conf
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
    )
    from airflow.sdk.log import mask_secret
    from airflow.sdk.plugins_manager import AirflowPlugin

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowPlugin",
    "AirflowSkipException",
    "BaseXCom",
    "RetryDecision",
    "RetryPolicy",
    "check_retry_policies",
    "conf",
    "determine_kwargs",
    "find_name",
    "has_asset_state",
    "mask_secret",
    "send_gauge",
    "tells_triggers_of_kills",
    "version",
]

_EXCEPTIONS: Final = ("airflow.sdk.exceptions", "airflow.exceptions")
# The modules that have a name, those of newer versions first.
_LOCATIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "AirflowException": _EXCEPTIONS,
    "AirflowFailException": _EXCEPTIONS,
    "AirflowNotFoundException": _EXCEPTIONS,
    "AirflowSkipException": _EXCEPTIONS,
    "AirflowPlugin": ("airflow.sdk.plugins_manager", "airflow.plugins_manager"),
    "BaseXCom": ("airflow.sdk", "airflow.sdk.bases.xcom"),
    "determine_kwargs": ("airflow.sdk.bases.decorator", "airflow.utils.operator_helpers"),
    "conf": ("airflow.sdk.configuration", "airflow.configuration"),
    "mask_secret": ("airflow.sdk.log", "airflow.sdk.execution_time.secrets_masker"),
}
_RETRY_POLICIES: Final = ("RetryPolicy", "RetryDecision")
_STATS: Final = ("airflow.sdk.observability.stats", "airflow.observability.stats", "airflow.stats")

if not TYPE_CHECKING:  # a type checker knows the names above, and would take any other for known

    def __getattr__(name: str) -> Any:
        """Return a name of Airflow from where this version has it; imported when it is asked for.

        Raises:
            AttributeError: see :func:`find_name`.
        """
        if name in _RETRY_POLICIES:  # a class must have a base, also where it cannot be made
            return getattr(importlib.import_module("airflow.sdk"), name, object)
        if name not in _LOCATIONS:  # such as what importing asks every module for
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return find_name(name, _LOCATIONS[name])


def find_name(name: str, locations: Sequence[str]) -> Any:
    """Return a name of Airflow from the first of these modules that has it.

    Raises:
        AttributeError: this version has it nowhere.
    """
    for location in locations:
        try:
            return getattr(importlib.import_module(location), name)
        except (ImportError, AttributeError):
            continue
    raise AttributeError(f"Airflow {version()} has no {name!r}")


def check_retry_policies(name: str) -> None:
    """Refuse a retry policy where Airflow asks none.

    Args:
        name: of the policy.

    Raises:
        ConfigError: this version of Airflow has no retry policies.
    """
    if not hasattr(importlib.import_module("airflow.sdk"), "RetryPolicy"):
        from airflow_provider.runtime.errors import ConfigError

        raise ConfigError(
            f"{name}: Airflow {version()} has no retry policies; leave retry_policy= out, and give "
            "retries= and retry_delay=, or upgrade Airflow to 3.3"
        )


@functools.cache
def has_asset_state() -> bool:
    """Whether assets have a state store, which triggers and listeners reach."""
    return _can_import("airflow.state.metastore")


@functools.cache
def tells_triggers_of_kills() -> bool:
    """Whether a trigger is called when its task is killed, and not only cancelled."""
    return hasattr(importlib.import_module("airflow.triggers.base").BaseTrigger, "on_kill")


@functools.cache
def _gauge() -> Any:
    for location in _STATS:
        if _can_import(location):
            module = importlib.import_module(location)
            return module.gauge if hasattr(module, "gauge") else module.Stats.gauge
    raise ImportError(f"Airflow {version()} has stats in none of {', '.join(_STATS)}")


def send_gauge(name: str, value: float, tags: Mapping[str, str] | None) -> None:
    """Send a number through Airflow's own stats.

    Raises:
        Exception: what the backend of the stats raises.
    """
    _gauge()(name, value, tags=tags)


def version() -> str:
    """Return the version of Airflow, for a message."""
    return str(importlib.import_module("airflow").__version__)


def _can_import(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # its parent is not there
        return False
