"""Parts of a submission: the application, beside the runtime's zip, and its token."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import airflow_provider

if TYPE_CHECKING:
    from collections.abc import Mapping


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
