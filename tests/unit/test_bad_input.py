"""Bad input that needs no Spark to be seen is one clear error, before anything is written or started."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from airflow_provider.runtime.cli import main
from airflow_provider.runtime.errors import ConfigError
from tests.spark.streams import JOBS, Location, write_events

EXIT_USAGE = 2


@pytest.fixture
def ready(tmp_path: Path) -> Location:
    """Return a location with a good input and nothing else."""
    location = Location(tmp_path)
    write_events(location.input, [(1, "a", 1)])
    return location


def paths_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def command(
    location: Location, *more: str, entry: str = f"{JOBS}:tumbling_window", job_dir: str = ""
) -> list[str]:
    params = ("--param", f"input={location.input}", "--param", f"output={location.output}")
    return ["run", job_dir or str(location.job_dir), "--entry", entry, *params, *more]


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one error that the command printed."""
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert 1 == len(errors)
    return errors[0]


@pytest.mark.parametrize(
    ("more", "asked", "words"),
    [
        ([], {"entry": "no/such/file.py:job"}, ["no/such/file.py", "no file"]),
        ([], {"entry": "tumbling_window"}, ["'tumbling_window'", "FILE.py:FUNCTION"]),
        ([], {"job_dir": "hdfs://host/job"}, ["hdfs://host/job", "'hdfs'", "write webhdfs://"]),
        ([], {"job_dir": "ftp://host/job"}, ["ftp://host/job", "'ftp'", "use one of"]),
        ([], {"job_dir": "memory://job"}, ["memory://job", "filesystem"]),
        (["--until=stopped", "--trigger=soon"], {}, ["--trigger", "'soon'", "10 seconds"]),
        (["--until=stopped", "--trigger=-5 seconds"], {}, ["--trigger", "'-5 seconds'"]),
        (["--until=stopped", "--trigger=1 month"], {}, ["--trigger", "'1 month'"]),
        (["--until=end", "--trigger=5 seconds"], {}, ["trigger", "'end'", "leave it out"]),
        (["--param=input"], {}, ["--param 'input'", "NAME=VALUE"]),
        (["--conf=spark.x"], {}, ["--conf 'spark.x'", "NAME=VALUE"]),
        (["--interval", "today", "tomorrow"], {}, ["--interval", "2026-01-01T00:00:00Z"]),
        (["--run-id=../other"], {}, ["run id '../other'", "letters, digits"]),
        (["--mode=batch", "--at-end=suspend"], {}, ["'batch'", "'suspend'", "'streaming'"]),
    ],
    ids=lambda value: "_".join(map(str, value)) if isinstance(value, list) else "",
)
def test_a_command_that_cannot_work_is_refused_before_spark(ready, capsys, more, asked, words):
    """
    The command ends with exit code 2, one line names the thing and what to write, nothing is there.
    """
    before = paths_under(ready.root)

    assert EXIT_USAGE == main.main(command(ready, *more, **asked))

    error = error_of(capsys)
    assert words == [word for word in words if word in error]
    assert before == paths_under(ready.root)
    assert not ready.job_dir.exists()


@pytest.mark.parametrize(
    ("option", "choices"),
    [
        ("--mode=sideways", "streaming"),
        ("--until=doomsday", "available"),
        ("--at-end=explode", "suspend"),
    ],
)
def test_an_unknown_word_is_refused_with_those_that_are_known(ready, capsys, option, choices):
    """The command line refuses it with exit code 2 and lists the words there are."""
    assert EXIT_USAGE == main.main(command(ready, option))

    error = error_of(capsys)
    assert option.partition("=")[2] in error
    assert choices in error
    assert not ready.job_dir.exists()


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ({"mode": "sideways"}, "mode 'sideways'.*'automatic', 'streaming', 'batch'"),
        ({"until": "doomsday"}, "until 'doomsday'.*'end', 'available', 'stopped'"),
        ({"at_end": "explode"}, "at_end 'explode'.*'drain', 'suspend'"),
    ],
)
def test_an_ask_refuses_unknown_words_as_well(ready, words, match):
    """An ask that was not typed but built says the same."""
    with pytest.raises(ConfigError, match=match):
        ready.ask("tumbling_window", **words)


def test_java_that_is_missing_is_said_so(ready, capsys, monkeypatch):
    """Without any Java the error says what to install."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")

    assert EXIT_USAGE == main.main(command(ready))

    error = error_of(capsys)
    assert "there is none on PATH" in error
    assert "openjdk-17" in error
    assert not ready.job_dir.exists()


def test_a_java_home_without_java_is_said_so(ready, capsys, monkeypatch):
    """A JAVA_HOME that is wrong is named."""
    monkeypatch.setenv("JAVA_HOME", str(ready.root))

    assert EXIT_USAGE == main.main(command(ready))

    assert f"JAVA_HOME is {ready.root}, which has no bin/java" in error_of(capsys)
    assert not ready.job_dir.exists()


def test_java_that_is_too_old_is_said_so(ready, capsys, monkeypatch):
    """The error names the Java that was found, its version and the one that is needed."""
    java = ready.root / "old" / "java"
    java.parent.mkdir()
    java.write_text(
        "#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n", encoding="utf-8"
    )
    java.chmod(0o755)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(java.parent) + os.pathsep + os.environ["PATH"])

    assert EXIT_USAGE == main.main(command(ready))

    error = error_of(capsys)
    assert re.search(rf"{re.escape(str(java))} is Java 11, Spark [0-9.]+ needs 17 or newer", error)
    assert not ready.job_dir.exists()


def test_a_job_directory_of_a_newer_version_is_left_alone(ready, capsys):
    """A directory whose format is newer is not touched, and the error says to upgrade."""
    ready.job_dir.mkdir()
    (ready.job_dir / "identity.json").write_text(json.dumps({"version": 99, "name": "later"}))

    assert EXIT_USAGE == main.main(command(ready))

    error = error_of(capsys)
    assert f"{ready.job_dir}/identity.json: format version 99 is newer than 2" in error
    assert "upgrade" in error
    assert ["identity.json"] == paths_under(ready.job_dir)


@pytest.mark.parametrize("verb", ["status", "cancel"])
def test_a_location_without_a_job_is_said_so(ready, capsys, verb):
    """Commands about a job that is not there say so and make nothing."""
    assert EXIT_USAGE == main.main([verb, str(ready.job_dir)])

    assert f"{ready.job_dir}: no job there" in error_of(capsys)
    assert not ready.job_dir.exists()
