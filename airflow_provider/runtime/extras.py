"""Extras of the package: what needs one that is not installed says so in one line."""

from __future__ import annotations

import importlib

from airflow_provider.runtime.errors import ConfigError


def require_extra(what: str, extra: str, *modules: str, on_executors: bool = False) -> None:
    """Refuse what needs libraries that are not installed.

    Args:
        what: the subject of the message.
        extra: what brings them.
        modules: what must import.
        on_executors: Spark's executors need it as well.

    Raises:
        ConfigError: the message says what to install.
    """
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError as error:
        where = ", on Spark's executors too" if on_executors else ""
        msg = (
            f"{what} needs the extra {extra!r}: "
            f"pip install 'airflow-provider-spark-streaming[{extra}]'{where}"
        )
        raise ConfigError(msg) from error
