"""The settings that a driver has fixed at its start, and that a run must have in common with it."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import sys
from collections.abc import Mapping  # noqa: TC003 - the type of a field that travels
from pathlib import Path
from typing import Final

import airflow_provider
from airflow_provider.extensions.warm_drivers.relative_paths import absolute
from airflow_provider.runtime.base.host import current_umask
from airflow_provider.runtime.spark.defaults import configuration_files, is_fixed_at_start

# What Java, Python, and the libraries of a driver read of the environment, most of it only once.
_READ_AT_START: Final = re.compile(
    "(AWS|AZURE|CLOUDSDK|GOOGLE|HADOOP|HIVE|_?JAVA|JDK|KUBERNETES|LC|LD|PYSPARK|SPARK|YARN)_.*"
    "|(KRB5|PYTHON).*|HOME|KUBECONFIG|LANG|LANGUAGE|TMPDIR|TZ"
)
_OURS: Final = ("SPARK_STREAM_",)
_WORKERS: Final = "PYSPARK_PYTHON"
_DRIVERS: Final = "PYSPARK_DRIVER_PYTHON"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FixedSettings:
    """The settings that a driver's processes can only get at their start.

    Attributes:
        python: the driver's interpreter, then those that the variables of PySpark name for
            workers and for drivers; as files, because a name means another one on another PATH.
        runtime: the version of this package, with the time of its newest file.
        files: Spark's and Hadoop's configuration files, with their times and sizes.
        master: Spark's master URL.
        conf: Spark's settings that a JVM reads when it starts, with absolute paths.
        environment: variables that Java, Python and their libraries read, with absolute paths.
        umask: of the process: the JVM has taken it over, and Hadoop has it as a setting.
        groups: of the process.
    """

    python: tuple[str, str, str]
    runtime: str
    files: tuple[str, ...]
    master: str
    conf: Mapping[str, str]
    environment: Mapping[str, str]
    umask: int
    groups: tuple[int, ...]

    @classmethod
    def of(
        cls, master: str | None, conf: Mapping[str, str], environ: Mapping[str, str]
    ) -> FixedSettings:
        workers = environ.get(_WORKERS) or sys.executable
        named = (sys.executable, workers, environ.get(_DRIVERS) or workers)
        here = str(Path.cwd())
        own, at_work, drivers = (_interpreter(each, environ.get("PATH")) for each in named)
        return cls(
            python=(own, at_work, drivers),
            runtime=_fingerprint(),
            files=tuple(_described(path) for path in configuration_files(environ)),
            master=master or "local[*]",
            conf={k: absolute(k, v, here) for k, v in conf.items() if is_fixed_at_start(k)},
            environment={
                k: absolute(k, v, here) for k, v in environ.items() if _is_read_at_start(k)
            },
            umask=current_umask(),
            groups=tuple(sorted({os.getegid(), *os.getgroups()})),
        )

    def difference(self, wanted: FixedSettings) -> str | None:
        """Return the first difference in words, without a value that may be secret; or None."""
        for what in ("python", "runtime", "master", "umask", "groups"):
            ours, others = (_shown(getattr(side, what), what) for side in (self, wanted))
            if ours != others:
                name = "list of groups" if what == "groups" else what
                return f"its {name} is {ours}, the run's {others}"
        if self.files != wanted.files:
            return "Spark's or Hadoop's configuration files have changed since it started"
        for kind, left, right in (
            ("setting", self.conf, wanted.conf),
            ("variable", self.environment, wanted.environment),
        ):
            for key in sorted({*left, *right}):
                if left.get(key) != right.get(key):
                    return f"its {kind} {key} differs from the run's"
        return None


def _is_read_at_start(name: str) -> bool:
    is_compared_as_a_file = name in {_WORKERS, _DRIVERS}
    if is_compared_as_a_file or name.startswith(_OURS):
        return False
    return _READ_AT_START.fullmatch(name) is not None


def _interpreter(named: str, path: str | None) -> str:
    """Return the file behind the name of an interpreter; the folder tells environments apart.

    An environment's ``python`` and ``python3`` are links to one file outside of it.
    """
    found = shutil.which(named, path=path)
    if found is None:
        return named if os.sep in named else f"{named} of the PATH {path}"
    return str(Path(os.path.realpath(Path(found).parent)) / Path(os.path.realpath(found)).name)


def _described(path: Path) -> str:
    found = path.stat()
    return f"{path} {found.st_mtime_ns} {found.st_size}"


def _shown(value: object, what: str) -> str:
    if what == "umask":
        return f"{value:03o}"
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _fingerprint() -> str:
    """Identify this code: a driver started before an upgrade must not be used."""
    root = Path(airflow_provider.__file__).parent
    newest = max((p.stat().st_mtime_ns for p in root.rglob("*.py")), default=0)
    return f"{airflow_provider.__version__} {newest}"
