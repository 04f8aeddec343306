"""The Spark installation of this machine, and its Java."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.fixes import of_caller
from airflow_provider.runtime.spark.versions import check_version, oldest_java, version_at

if TYPE_CHECKING:
    from collections.abc import Mapping

_REMEDY: Final = (
    "install a Java runtime 17 (Debian, Ubuntu: openjdk-17-jre-headless), on which every Spark "
    "runs, or set JAVA_HOME to one"
)


def find_java(environ: Mapping[str, str] = os.environ) -> str:
    """Return the ``java`` that Spark will start: of ``$JAVA_HOME``, else the one on ``PATH``."""
    home = environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise ConfigError(f"JAVA_HOME is {home}, which has no bin/java; {_REMEDY}")
        return str(java)
    found = shutil.which("java", path=environ.get("PATH", ""))
    if found is None:
        raise ConfigError(f"Spark needs Java and there is none on PATH; {_REMEDY}")
    return found


def spark_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of ``spark-submit``'s Spark, which may not exist, without PySpark."""
    if home := environ.get("SPARK_HOME"):
        return Path(home)
    found = importlib.util.find_spec("pyspark")
    return Path(found.origin).parent if found is not None and found.origin else Path("/nonexistent")


def is_submitted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether ``spark-submit`` has started this process and its JVM."""
    return "PYSPARK_GATEWAY_PORT" in environ


def check_java(environ: Mapping[str, str] = os.environ) -> None:
    """Refuse a Spark that the runtime does not know, and a Java that is too old for it."""
    home = spark_home(environ)
    version = version_at(home)
    if version is not None:
        check_version(version, home)
    elif environ.get("SPARK_HOME") and not (home / "bin" / "spark-submit").exists():
        raise ConfigError(
            f"SPARK_HOME is {home}, which has no bin/spark-submit; correct it, or unset it"
        )
    java, minimum = find_java(environ), oldest_java(version)
    major = _released_major(java) or _answered_major(java)
    if major < minimum:
        spark = "Spark" if version is None else f"Spark {version}"
        raise ConfigError(f"{java} is Java {major}, {spark} needs {minimum} or newer; {_REMEDY}")


def _released_major(java: str) -> int | None:
    """Return the major version by the file of a Java's release, which spares the start of a JVM."""
    try:
        return java_major((Path(java).resolve().parents[1] / "release").read_text(errors="replace"))
    except OSError:  # a wrapper, or a very old Java
        return None


def _answered_major(java: str) -> int:
    run = subprocess.run(
        [java, "-version"], capture_output=True, text=True, check=False, timeout=60
    )
    text = run.stderr + run.stdout
    major = java_major(text)
    if run.returncode != 0 or major is None:
        raise ConfigError(
            f"{java} -version did not answer with a version ({text.strip()[:200]!r}); {_REMEDY}"
        )
    return major


def java_major(text: str) -> int | None:
    """Return the major version in the output of ``java -version`` or a file ``release``."""
    match = re.search(r'(?:version |JAVA_VERSION=)"(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


_CONNECT: Final = "sc://"


def check_classic(
    master: str | None,
    conf: Mapping[str, str],
    environ: Mapping[str, str] = os.environ,
    *,
    named: str | None = None,
) -> None:
    """Refuse Spark Connect, whose client sees neither plans nor logs of its queries."""
    named = named or of_caller("--master", "master")
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
        raise ConfigError(
            f"{found} requests Spark Connect, and a driver needs a JVM of its own; use local[*], "
            "spark://, yarn or k8s:// as the master, and nothing of Spark Connect beside it"
        )
