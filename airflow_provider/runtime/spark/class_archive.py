"""Archive of Spark's classes, with which a JVM starts in about half the time.

Java can keep the classes that an application has loaded, parsed and verified, and map them into the
next JVM (class data sharing, JEP 350). One archive serves one Spark on one Java; its name has a
digest of both. A JVM of its own makes it in the background when a driver has ended. Nothing depends
on it: without one, a driver only starts more slowly.

The archives, about 190 MB each, are in ``$SPARK_STREAM_CACHE``, else in the folder ``spark-stream``
of ``$XDG_CACHE_HOME`` or ``~/.cache``. A JVM trusts what it maps, so only an archive that only its
owner can write is used. ``SPARK_STREAM_CACHE=off`` is for no archive.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base.host import file_lock, module_command
from airflow_provider.runtime.errors import ConfigError, SparkStreamError
from airflow_provider.runtime.spark.installation import find_java, spark_home

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

_TIMEOUT_S: Final = 600.0
_WAIT_AFTER_FAILURE_S: Final = 86_400.0
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_MAJOR: Final = re.compile(r'JAVA_VERSION="(?:1\.)?(\d+)')
_OLDEST_JAVA: Final = 13  # an older one has neither the option that makes it, nor takes ours
_VARIABLE: Final = "SPARK_STREAM_CACHE"
_OFF: Final = "off"
MAKER: Final = "airflow_provider.runtime.warm_up"
"""Module whose process runs a small job in a JVM with the option that it gets."""


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of a user's archives; it may not exist."""
    if own := environ.get(_VARIABLE):
        return Path(own)
    base = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "~")).expanduser() / ".cache"
    return Path(base) / "spark-stream"


def archive_path(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of the archive for this Spark and this Java; None if there can be none."""
    if environ.get(_VARIABLE) == _OFF:
        return None
    try:
        java = Path(find_java(environ)).resolve()
    except ConfigError:
        return None
    jars = spark_home(environ) / "jars"
    try:
        parts = [f"{p.name} {p.stat().st_size} {p.stat().st_mtime_ns}" for p in jars.iterdir()]
        release = java.parents[1] / "release"
        version = release.read_text() if release.exists() else str(java.stat().st_mtime_ns)
    except OSError:
        return None
    if (major := _MAJOR.search(version)) is not None and int(major[1]) < _OLDEST_JAVA:
        return None
    versions = "\n".join([str(jars.resolve()), str(java), version, *sorted(parts)])
    name = f"{_digest(sys.prefix)[:8]}-{_digest(versions)[:16]}.jsa"
    return cache_folder(environ) / name


def archive_options(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the options with which a JVM uses the archive; none without a trusted one."""
    archive = archive_path(environ)
    if archive is None or " " in str(archive) or not _is_trusted(archive):
        return []
    # A JVM that cannot use it, for it has more on its class path, starts without it, and is silent.
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off,cds+dynamic=off"]


def make_in_background(environ: Mapping[str, str] = os.environ) -> bool:
    """Start a process of low priority that makes a missing archive; return whether it started."""
    archive = archive_path(environ)
    if archive is None or archive.exists() or _has_failed(archive):
        return False
    try:
        process = subprocess.Popen(
            module_command(__name__),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=dict(environ),
            cwd="/",
        )
    except OSError:
        log.debug("no archive of Spark's classes", exc_info=True)
        return False
    # It may outlive this process; if it does not, it must not stay a zombie.
    threading.Thread(target=process.wait, name="reaper", daemon=True).start()
    return True


def make_archive(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Make the archive unless there is one; None while another process is making it."""
    archive = archive_path(environ)
    if archive is None:
        raise SparkStreamError(
            f"there is no Java, or no Spark, whose classes could be archived; or {_VARIABLE}={_OFF}"
        )
    folder = archive.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file_lock(archive.with_suffix(".lock")) as is_mine:
            if is_mine and not archive.exists():
                _make(archive, environ)
                _remove_older(archive)
    except OSError as error:
        raise SparkStreamError(
            f"{archive}: the archive of Spark's classes could not be made: {error}"
        ) from error
    return archive if archive.exists() else None


def _make(archive: Path, environ: Mapping[str, str]) -> None:
    made = archive.with_suffix(f".{os.getpid()}")
    failed = archive.with_suffix(".failed")
    command = [*module_command(MAKER), f"-XX:ArchiveClassesAtExit={made}"]
    try:
        try:
            run = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
                env=dict(environ), cwd="/",
            )  # fmt: skip
            has_ended_well, said = run.returncode == 0, run.stderr
        except subprocess.TimeoutExpired:
            has_ended_well, said = False, f"it has not ended within {_TIMEOUT_S:.0f} s"
        if not has_ended_well or not made.exists():
            failed.write_text(said[-4000:], encoding="utf-8")
            raise SparkStreamError(
                f"{archive}: the archive of Spark's classes could not be made; see {failed}"
            )
        made.chmod(0o600)
        made.replace(archive)
        failed.unlink(missing_ok=True)
    finally:
        made.unlink(missing_ok=True)


def _remove_older(archive: Path) -> None:
    """Remove this environment's older archives; a JVM that has mapped one keeps it."""
    environment = archive.name.partition("-")[0]
    finished = archive.parent.glob(f"{environment}-*.jsa")
    unfinished = (p for p in archive.parent.glob(f"{environment}-*.*") if p.suffix[1:].isdecimal())
    for other in [*finished, *unfinished]:
        if other != archive:
            other.unlink(missing_ok=True)


def _has_failed(archive: Path) -> bool:
    """Whether it failed within the last day: the next attempt would fail, too."""
    try:
        age = time.time() - archive.with_suffix(".failed").stat().st_mtime
    except OSError:
        return False
    return age < _WAIT_AFTER_FAILURE_S


def _is_trusted(archive: Path) -> bool:
    try:
        found = archive.stat()
        folder = archive.parent.stat()
    except OSError:
        return False
    owners = {0, os.geteuid()}
    return all(s.st_uid in owners and not s.st_mode & _OTHERS_WRITE for s in (found, folder))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    os.nice(19)
    with contextlib.suppress(SparkStreamError):
        make_archive()
