"""Java, before a JVM is started: there, and new enough."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

MINIMUM: Final = 17
_REMEDY: Final = (
    f"install a Java runtime {MINIMUM} or newer (Debian, Ubuntu: openjdk-17-jre-headless) "
    "or set JAVA_HOME to one"
)


def find_java(environ: Mapping[str, str] = os.environ) -> str:
    """Return the ``java`` that Spark will start: ``$JAVA_HOME/bin/java``, else the one on ``PATH``.

    Raises:
        ConfigError: there is none.
    """
    home = environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            msg = f"JAVA_HOME is {home}, which has no bin/java; {_REMEDY}"
            raise ConfigError(msg)
        return str(java)
    found = shutil.which("java", path=environ.get("PATH", ""))
    if found is None:
        msg = f"Spark needs Java and there is none on PATH; {_REMEDY}"
        raise ConfigError(msg)
    return found


def check_java(environ: Mapping[str, str] = os.environ) -> None:
    """Refuse a machine whose Java is missing or too old.

    Raises:
        ConfigError: it is; the message names what was found and what to do.
    """
    java = find_java(environ)
    run = subprocess.run(
        [java, "-version"], capture_output=True, text=True, check=False, timeout=60
    )
    text = run.stderr + run.stdout
    major = java_major(text)
    if run.returncode != 0 or major is None:
        msg = f"{java} -version did not answer with a version ({text.strip()[:200]!r}); {_REMEDY}"
        raise ConfigError(msg)
    if major < MINIMUM:
        msg = f"{java} is Java {major}, Spark needs {MINIMUM} or newer; {_REMEDY}"
        raise ConfigError(msg)


def java_major(text: str) -> int | None:
    """Return the major version in what ``java -version`` prints, None when there is none."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None
