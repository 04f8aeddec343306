"""Which Spark a driver can work with: one whose JVM is its own, not one at the end of a wire."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONNECT: Final = "sc://"


def check_classic(
    master: str | None,
    conf: Mapping[str, str],
    environ: Mapping[str, str] = os.environ,
    *,
    named: str = "--master",
) -> None:
    """Refuse Spark Connect, whose client sees neither plans nor logs of the queries it starts.

    Args:
        master: Spark's master URL, if one is given.
        conf: Spark's configuration, as far as it is given.
        environ: the driver's environment.
        named: what the master is called where it was given.

    Raises:
        ConfigError: the message says what asks for it.
    """
    asks = {
        f"{named} {master}": (master or "").startswith(_CONNECT),
        f"spark.remote={conf.get('spark.remote')}": "spark.remote" in conf,
        "spark.api.mode=connect": conf.get("spark.api.mode") == "connect",
        f"the variable SPARK_REMOTE={environ.get('SPARK_REMOTE')}": bool(
            environ.get("SPARK_REMOTE")
        ),
    }
    found = next((what for what, is_asked in asks.items() if is_asked), None)
    if found is not None:
        msg = (
            f"{found} asks for Spark Connect, and a driver needs a JVM of its own; use local[*], "
            "spark://, yarn or k8s:// as the master, and nothing of Spark Connect beside it"
        )
        raise ConfigError(msg)
