"""Archive of Spark's classes: which one belongs to which Spark, who may make it, who may use it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.spark import class_archive
from airflow_provider.runtime.spark.class_archive import (
    archive_options,
    archive_path,
    cache_folder,
    make_archive,
    make_in_background,
)
from tests.present import present

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LIMIT_S = 30.0
MAKES = """
import pathlib, sys
option, _, path = sys.argv[1].partition("=")
assert option == "-XX:ArchiveClassesAtExit"
pathlib.Path(path).write_text("classes")
"""
FAILS = "import sys; sys.exit('there is no room on the disk')"
MAKES_NOTHING = ""
# Two named pipes: it says that it has begun, and waits until somebody lets it go on.
WAITS = f"""
import os, pathlib, sys
pathlib.Path(os.environ["BEGUN"]).write_text("begun")
pathlib.Path(os.environ["GO_ON"]).read_text()
{MAKES}
"""
SLEEPS = "import time; time.sleep(60)"

Environ = dict[str, str]


@pytest.fixture
def environ(tmp_path: Path) -> Environ:
    """An environment with a Spark of two jars and a Java, neither of which can be started."""
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    for name in ("spark-core.jar", "spark-sql.jar"):
        (jars / name).write_text(name)
    submit = tmp_path / "spark" / "bin" / "spark-submit"
    java = tmp_path / "java" / "bin" / "java"
    for command in (submit, java):
        command.parent.mkdir(parents=True)
    submit.touch()
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    (tmp_path / "java" / "release").write_text('JAVA_VERSION="17.0.1"\n')
    return {
        **os.environ,
        "SPARK_HOME": str(tmp_path / "spark"),
        "JAVA_HOME": str(tmp_path / "java"),
        "SPARK_STREAM_CACHE": str(tmp_path / "cache"),
    }


@pytest.fixture
def maker(
    environ: Environ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Return what puts a program in the place of the JVM that archives its classes."""

    def put(source: str) -> None:
        (tmp_path / "modules").mkdir(exist_ok=True)
        (tmp_path / "modules" / "stand_in_maker.py").write_text(source)
        paths = [str(tmp_path / "modules"), environ.get("PYTHONPATH", "")]
        environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        monkeypatch.setattr(class_archive, "MAKER", "stand_in_maker")

    return put


def path_of(environ: Mapping[str, str]) -> Path:
    return present(archive_path(environ))


def an_archive(environ: Mapping[str, str]) -> Path:
    """Return an archive that can be trusted."""
    path = path_of(environ)
    path.parent.mkdir(mode=0o700)
    path.write_text("classes")
    path.chmod(0o600)
    return path


# --- which archive ------------------------------------------------------------------------------


@pytest.mark.parametrize(("java", "can"), [("1.8.0_392", False), ("11.0.21", False), ("13", True)])
def test_an_older_java_has_no_archive(environ, java, can):
    """Before Java 13 there is no such option, and a JVM that gets it does not start."""
    release = Path(environ["JAVA_HOME"]) / "release"
    release.write_text(f'IMPLEMENTOR="Debian"\nJAVA_VERSION="{java}"\n')

    assert can is (archive_path(environ) is not None)
    assert can or not make_in_background(environ)


def test_the_same_spark_and_java_have_the_same_archive(environ):
    """Its name does not depend on when it is asked for; it lies in the user's cache."""
    assert path_of(environ) == path_of(dict(environ))
    assert Path(environ["SPARK_STREAM_CACHE"]) == path_of(environ).parent
    assert ".jsa" == path_of(environ).suffix


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "java" / "release").write_text('JAVA_VERSION="17.0.2"\n'),
        lambda root: (root / "java" / "release").unlink(),
        lambda root: (root / "spark" / "jars" / "more.jar").touch(),
        lambda root: (root / "spark" / "jars" / "spark-sql.jar").unlink(),
        lambda root: (root / "spark" / "jars" / "spark-sql.jar").write_text("another"),
        lambda root: os.utime(root / "spark" / "jars" / "spark-sql.jar", (1, 1)),
    ],
    ids=["Java's release", "no release", "a jar more", "a jar less", "its size", "its time"],
)
def test_another_spark_or_java_has_another_archive(environ, tmp_path, change):
    """A JVM would refuse an archive that was made with other classes, or by another Java."""
    before = path_of(environ)
    change(tmp_path)

    assert before != path_of(environ)
    assert before.name.partition("-")[0] == path_of(environ).name.partition("-")[0]


def test_another_environment_has_another_archive(environ, monkeypatch):
    """Two environments of Python on one machine do not remove each other's."""
    before = path_of(environ)
    monkeypatch.setattr(sys, "prefix", "/elsewhere")

    assert before.name.partition("-")[0] != path_of(environ).name.partition("-")[0]


@pytest.mark.parametrize("missing", ["JAVA_HOME", "SPARK_HOME"])
def test_without_java_or_spark_there_is_no_archive(environ, tmp_path, missing):
    """Nothing is made or used, and to make one is an error that says so."""
    environ[missing] = str(tmp_path / "none")

    assert archive_path(environ) is None
    assert [] == archive_options(environ)
    assert not make_in_background(environ)
    with pytest.raises(SparkStreamError, match="no Java, or no Spark"):
        make_archive(environ)


def test_archives_can_be_switched_off(environ):
    """None is used although there is one, and none is made."""
    an_archive(environ)
    environ["SPARK_STREAM_CACHE"] = "off"

    assert [] == archive_options(environ)
    assert not make_in_background(environ)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"SPARK_STREAM_CACHE": "/mine", "XDG_CACHE_HOME": "/cache"}, "/mine"),
        ({"XDG_CACHE_HOME": "/cache", "HOME": "/h"}, "/cache/spark-stream"),
        ({"HOME": "/h"}, "/h/.cache/spark-stream"),
    ],
)
def test_archives_are_in_the_users_cache(variables, expected):
    """The folder is named, or is where a user's caches are."""
    assert Path(expected) == cache_folder(variables)


# --- which archive is used ----------------------------------------------------------------------


def test_an_archive_is_used_when_it_is_there(environ):
    """The JVM is silent, and starts without it, where it does not fit."""
    assert [] == archive_options(environ)
    path = an_archive(environ)

    assert f"-XX:SharedArchiveFile={path}" in archive_options(environ)
    assert "-Xshare:auto" in archive_options(environ)


@pytest.mark.parametrize("which", ["file", "folder"])
@pytest.mark.parametrize("bit", [stat.S_IWGRP, stat.S_IWOTH])
def test_an_archive_that_others_can_write_is_ignored(environ, which, bit):
    """A JVM runs what it maps, so nobody else may write it, or replace it."""
    path = an_archive(environ)
    target = path if which == "file" else path.parent
    target.chmod(stat.S_IMODE(target.stat().st_mode) | bit)

    assert [] == archive_options(environ)


def test_an_archive_of_another_user_is_ignored(environ):
    """Only the user's own, and root's, count."""
    path = an_archive(environ)
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 65534, 65534)

    assert [] == archive_options(environ)


# --- how one is made ----------------------------------------------------------------------------


def test_an_archive_is_made_once(environ, maker):
    """It and its folder are the user's alone, nothing else is left, and it is not made again."""
    maker(MAKES)
    path = present(make_archive(environ))

    assert path_of(environ) == path
    assert "classes" == path.read_text()
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert 0o700 == stat.S_IMODE(path.parent.stat().st_mode)
    assert {path.name, path.with_suffix(".lock").name} == set(os.listdir(path.parent))
    assert archive_options(environ)

    maker(FAILS)
    assert path == make_archive(environ)
    assert not make_in_background(environ)


@pytest.mark.parametrize(("source", "said"), [(FAILS, "no room"), (MAKES_NOTHING, "")])
def test_a_failure_is_an_error_and_is_kept(environ, maker, source, said):
    """
    One error names the file with what the maker said; no archive, and nothing half done, is left.
    """
    maker(source)
    with pytest.raises(SparkStreamError, match="could not be made; see ") as raised:
        make_archive(environ)
    failed = path_of(environ).with_suffix(".failed")

    assert str(failed) in str(raised.value)
    assert said in failed.read_text()
    assert {failed.name, failed.with_suffix(".lock").name} == set(os.listdir(failed.parent))


@pytest.mark.slow
def test_a_maker_that_hangs_is_ended(environ, maker, monkeypatch):
    """It counts as a failure, like any other."""
    maker(SLEEPS)
    monkeypatch.setattr(class_archive, "_TIMEOUT_S", 0.2)

    with pytest.raises(SparkStreamError, match="could not be made; see "):
        make_archive(environ)
    assert "within 0 s" in path_of(environ).with_suffix(".failed").read_text()


def test_after_a_failure_nothing_is_started_for_a_day(environ, maker):
    """The next attempt would fail, too; after a day it is made again, and forgets the failure."""
    maker(FAILS)
    with pytest.raises(SparkStreamError):
        make_archive(environ)
    assert not make_in_background(environ)

    maker(MAKES)
    failed = path_of(environ).with_suffix(".failed")
    yesterday = time.time() - 86_401
    os.utime(failed, (yesterday, yesterday))
    assert make_archive(environ) is not None
    assert not failed.exists()


def test_a_cache_that_cannot_be_written_is_an_error(environ, tmp_path):
    """The message names the archive."""
    (tmp_path / "cache").write_text("a file")

    with pytest.raises(SparkStreamError, match=r"\.jsa: .* could not be made: "):
        make_archive(environ)


@pytest.mark.slow
def test_two_processes_do_not_make_it_at_once(environ, maker, tmp_path):
    """The second one leaves it to the first, at once; the lock ends with its process."""
    begun, go_on = tmp_path / "begun", tmp_path / "go-on"
    for fifo in (begun, go_on):
        os.mkfifo(fifo)
    maker(WAITS)
    script = (
        "from airflow_provider.runtime.spark import class_archive\n"
        "class_archive.MAKER = 'stand_in_maker'\n"
        "class_archive.make_archive()\n"
    )
    variables = {**environ, "BEGUN": str(begun), "GO_ON": str(go_on)}
    with subprocess.Popen([sys.executable, "-c", script], env=variables) as first:
        assert "begun" == begun.read_text()
        assert make_archive(environ) is None
        go_on.write_text("go on")
        assert 0 == first.wait(LIMIT_S)

    assert path_of(environ).exists()


def test_older_archives_of_the_environment_are_removed(environ, maker, tmp_path):
    """After an upgrade one archive is left; those of other environments, and other files, stay."""
    maker(MAKES)
    older = present(make_archive(environ))
    others = older.with_name(f"00000000-{older.name.partition('-')[2]}")
    notes = older.with_name("notes.txt")
    for path in (others, notes):
        path.write_text("not mine")
    unfinished = older.with_suffix(".4711")
    unfinished.touch()
    (tmp_path / "spark" / "jars" / "more.jar").touch()

    newer = present(make_archive(environ))

    assert newer != older
    assert not older.exists()
    assert not unfinished.exists()
    assert others.exists()
    assert notes.exists()


@pytest.mark.slow
def test_an_archive_is_made_in_the_background(environ, tmp_path):
    """A process of the lowest priority starts Java while the caller goes on; this Java fails."""
    java = tmp_path / "java" / "bin" / "java"
    java.write_text('#!/bin/sh\nnice > "$NICE"\nexit 1\n')
    (tmp_path / "java" / "release").unlink()  # else its version is known without a start
    environ["NICE"] = str(tmp_path / "nice")
    failed = path_of(environ).with_suffix(".failed")

    assert make_in_background(environ)

    deadline = time.monotonic() + LIMIT_S
    while not (failed.exists() and failed.read_text()):
        assert time.monotonic() < deadline, "it has not failed"
        time.sleep(0.05)
    assert "19" == (tmp_path / "nice").read_text().strip()
    assert not make_in_background(environ)
