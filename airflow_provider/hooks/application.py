"""Parts of a submission: the application, its process's environment, and its token."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import airflow_provider
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Airflow's own configuration and secrets are the worker's; a driver has no use for them.
_PRIVATE_PREFIXES = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "_AIRFLOW_")


_UPLOADS = "spark.kubernetes.file.upload.path"


def application_path() -> Path:
    """Return the script that ``spark-submit`` runs."""
    root = Path(airflow_provider.__file__).parent
    return root / "runtime" / "cli" / "application" / "spark_stream_driver.py"


def token_conf(master: str, token: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return what makes a cluster show which submission an application is, and start it once.

    A driver that has ended refuses to be started again; Airflow's next try submits another one.
    """
    if master.startswith("yarn"):
        tags = [tag for tag in conf.get("spark.yarn.tags", "").split(",") if tag]
        attempts = conf.get("spark.yarn.maxAppAttempts", "1")
        return {
            "spark.yarn.tags": ",".join([*tags, f"spark-stream-{token}"]),
            "spark.yarn.maxAppAttempts": attempts,
        }
    if master.startswith("k8s"):
        places = ("driver", "executor")
        return {f"spark.kubernetes.{p}.label.spark-stream-driver-id": token for p in places}
    return {}


def check_uploads(conf: Mapping[str, str], *, named: str) -> None:
    """Refuse a driver in Kubernetes whose files nobody could bring there.

    Args:
        conf: Spark's configuration, as far as it is known here.
        named: the connection.

    Raises:
        ConfigError: ``spark-submit`` would fail in each try.
    """
    if not conf.get(_UPLOADS):
        msg = (
            f"{named}: in deploy mode cluster on Kubernetes spark-submit brings the driver's files "
            f"through a store: set {_UPLOADS}, such as s3a://bucket/uploads, in conf"
        )
        raise ConfigError(msg)


def driver_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of ``spark-submit``, made from a worker's."""
    kept = {k: v for k, v in environ.items() if not k.startswith(_PRIVATE_PREFIXES)}
    # spark-submit and Python of the worker's own environment, unless somebody chose others.
    scripts = str(Path(sys.executable).parent)
    kept["PATH"] = os.pathsep.join([scripts, kept.get("PATH", os.defpath)])
    kept.setdefault("PYSPARK_PYTHON", sys.executable)
    return kept
