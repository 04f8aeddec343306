"""Settings of the section ``[spark_stream]`` in Airflow's configuration, read when needed."""

from __future__ import annotations

import math
import re
from typing import Final, NoReturn

from airflow_provider import get_provider_info
from airflow_provider.airflow_versions import conf
from airflow_provider.runtime.control.launcher import OFF
from airflow_provider.runtime.errors import ConfigError

SECTION: Final = "spark_stream"
_WORDS: Final = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
_WEB: Final = re.compile(r"https?://[^/\s]+(/\S*)?")


def history_server() -> str | None:
    """Return the address of Spark's history server, without a slash at its end."""
    address = _read("history_server").rstrip("/")
    if address and not _WEB.fullmatch(address):
        _refuse("history_server", address, "an address, such as https://history.example.com:18080")
    return address or None


def refresh_s() -> float:
    """Return the seconds between two requests of the page."""
    text = _read("refresh_s")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds < math.inf:
        _refuse("refresh_s", text, "a number of seconds, 1 or more")
    return seconds


def local_drivers() -> str:
    """Return how many drivers of a machine may start or read bounded input at a time, as text."""
    text = _read("local_drivers")
    if text not in {"", OFF} and not (text.isdecimal() and int(text)):
        _refuse("local_drivers", text, f"a number of drivers, 1 or more, or {OFF} for no limit")
    return text


def driver_outlives_task() -> bool | None:
    """Return what a worker's configuration says of its drivers; None if it says nothing."""
    text = _read("driver_outlives_task")
    if not text:
        return None
    if text.lower() not in _WORDS:
        _refuse("driver_outlives_task", text, "True or False, or empty for what the task finds")
    return _WORDS[text.lower()]


def metrics() -> bool:
    """Whether numbers of streams are reported as Airflow's metrics."""
    text = _read("metrics")
    if text.lower() not in _WORDS:
        _refuse("metrics", text, "True or False")
    return _WORDS[text.lower()]


def storage_conn_id() -> str | None:
    """Return the connection for job directories in S3, of tasks that name none."""
    return _read("storage_conn_id") or None


def _read(option: str) -> str:
    default = get_provider_info()["config"][SECTION]["options"][option]["default"]
    return str(conf.get(SECTION, option, fallback=default)).strip()


def _refuse(option: str, value: str, needed: str) -> NoReturn:
    raise ConfigError(f"[{SECTION}] {option} = {value!r} in Airflow's configuration: {needed}")
