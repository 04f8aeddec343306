"""What goes with a submission: the runtime as one zip for ``--py-files``, and its token.

A cluster needs only PySpark and fsspec.
"""

from __future__ import annotations

import hashlib
import os
import uuid
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import airflow_provider

if TYPE_CHECKING:
    from collections.abc import Mapping

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same files make the same zip
_STAYS = ("runtime/testing.py",)  # for tests of sinks: needs pytest, which no cluster has


def application_path() -> Path:
    """Return the script that ``spark-submit`` runs."""
    root = Path(airflow_provider.__file__).parent
    return root / "runtime" / "application" / "spark_stream_driver.py"


def runtime_zip(folder: Path) -> Path:
    """Return a zip of the runtime in *folder*, named by its content; made when it is not there.

    Crash safety: written beside its place and renamed. Idempotent: by content.
    """
    root = Path(airflow_provider.__file__).parent
    stays = {root / name for name in _STAYS}
    sources = [root / "__init__.py", *sorted({*(root / "runtime").rglob("*.py")} - stays)]
    contents = [(p.relative_to(root.parent).as_posix(), p.read_bytes()) for p in sources]
    digest = hashlib.sha256()
    for name, data in contents:
        digest.update(name.encode() + b"\0" + data + b"\0")
    target = folder / f"spark-stream-runtime-{digest.hexdigest()[:16]}.zip"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{uuid.uuid4().hex}.zip"
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in contents:
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), data)
        os.replace(temporary, target)
    return target


def token_conf(master: str, token: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return what makes a cluster show which submission an application is."""
    if master.startswith("yarn"):
        tags = [tag for tag in conf.get("spark.yarn.tags", "").split(",") if tag]
        return {"spark.yarn.tags": ",".join([*tags, f"spark-stream-{token}"])}
    if master.startswith("k8s"):
        places = ("driver", "executor")
        return {f"spark.kubernetes.{p}.label.spark-stream-driver-id": token for p in places}
    return {}
