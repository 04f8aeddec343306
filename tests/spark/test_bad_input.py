"""Bad input is one clear error that names the thing and the way out, before anything is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from streams import JOBS, Place, write_events

import airflow_provider
from airflow_provider.runtime.cli import main
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.run_spec import RunSpec

EXIT_USAGE = 2


@pytest.fixture
def ready(place: Place) -> Place:
    """Return a place with a good input and nothing else."""
    write_events(place.input, [(1, "a", 1)])
    return place


def paths_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def command(
    place: Place, *more: str, entry: str = f"{JOBS}:tumbling_window", job_dir: str = ""
) -> list[str]:
    params = ("--param", f"input={place.input}", "--param", f"output={place.output}")
    return ["run", job_dir or str(place.job_dir), "--entry", entry, *params, *more]


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one error that the command printed."""
    errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
    assert 1 == len(errors)
    return errors[0]


# --- refused before Spark starts ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "asked", "words"),
    [
        ([], {"entry": "no/such/file.py:job"}, ["no/such/file.py", "no file"]),
        ([], {"entry": "tumbling_window"}, ["'tumbling_window'", "FILE.py:FUNCTION"]),
        ([], {"job_dir": "hdfs://host/job"}, ["hdfs://host/job", "'hdfs'", "use one of"]),
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
    """
    The command line refuses it with exit code 2 and lists the words there are.
    """
    with pytest.raises(SystemExit) as ended:
        main.main(command(ready, option))

    assert EXIT_USAGE == ended.value.code
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
    """
    An ask that was not typed but built says the same.
    """
    with pytest.raises(ConfigError, match=match):
        ready.ask("tumbling_window", **words)


def test_java_that_is_missing_is_said_so(ready, capsys, monkeypatch):
    """
    Without any Java the error says what to install.
    """
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")

    assert EXIT_USAGE == main.main(command(ready))

    error = error_of(capsys)
    assert "there is none on PATH" in error
    assert "openjdk-17" in error
    assert not ready.job_dir.exists()


def test_a_java_home_without_java_is_said_so(ready, capsys, monkeypatch):
    """
    A JAVA_HOME that is wrong is named.
    """
    monkeypatch.setenv("JAVA_HOME", str(ready.root))

    assert EXIT_USAGE == main.main(command(ready))

    assert f"JAVA_HOME is {ready.root}, which has no bin/java" in error_of(capsys)
    assert not ready.job_dir.exists()


def test_java_that_is_too_old_is_said_so(ready, capsys, monkeypatch):
    """
    The error names the Java that was found, its version and the one that is needed.
    """
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
    assert f"{java} is Java 11, Spark needs 17 or newer" in error
    assert not ready.job_dir.exists()


def test_a_job_directory_of_a_newer_version_is_left_alone(ready, capsys):
    """
    A directory whose format is newer is not touched, and the error says to upgrade.
    """
    ready.job_dir.mkdir()
    (ready.job_dir / "job.json").write_text(json.dumps({"version": 99, "name": "later"}))

    assert EXIT_USAGE == main.main(command(ready))

    error = error_of(capsys)
    assert f"{ready.job_dir}/job.json: format version 99 is newer than 1" in error
    assert "upgrade" in error
    assert ["job.json"] == paths_under(ready.job_dir)


@pytest.mark.parametrize("verb", ["status", "cancel"])
def test_a_place_without_a_job_is_said_so(ready, capsys, verb):
    """
    Commands about a job that is not there say so and make nothing.
    """
    assert EXIT_USAGE == main.main([verb, str(ready.job_dir)])

    assert f"{ready.job_dir}: no job there" in error_of(capsys)
    assert not ready.job_dir.exists()


# --- refused when the job's function has been called --------------------------------------------


@pytest.mark.spark
@pytest.mark.parametrize(
    ("job", "asked", "words"),
    [
        ("missing_function", {}, ["'missing_function'", "tumbling_window"]),
        ("no_query", {}, ["no_query", "no query", "ctx.write"]),
        ("one_name_twice", {}, ["query 'twin'", "twice", "name of its own"]),
        ("unknown_sink", {}, ["query 'out'", "unknown sink 'console'", "files("]),
        ("missing_param", {}, ["'where_the_events_are'", "--param where_the_events_are="]),
        ("raising", {}, ["jobs.py:raising", "ZeroDivisionError", "no such day"]),
        (
            "in_format",
            {"params": {"format": "xlsx"}},
            ["unknown format 'xlsx'", "parquet, json, csv, orc"],
        ),
        (
            "tumbling_window",
            {"params": {"bounded": "no"}, "until": "end"},
            ["source 'events'", "not bounded", "until='available'"],
        ),
        (
            "tumbling_window",
            {"until": "stopped", "at_end": "drain"},
            ["at_end='drain'", "until='stopped'"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_job_that_cannot_run_is_refused_before_anything_is_written(
    spark, ready, job, asked, words
):
    """
    The error names the thing and the way out; neither job directory nor output is made.
    """
    before = paths_under(ready.root)

    with pytest.raises(ConfigError) as refused:
        ready.run(spark, job, **asked)

    assert EXIT_USAGE == refused.value.exit_code
    assert words == [word for word in words if word in str(refused.value)]
    assert before == paths_under(ready.root)


@pytest.mark.spark
def test_an_input_that_cannot_be_read_is_named(spark, place):
    """
    A path that does not exist is an error of the source of that name, not an empty input.
    """
    with pytest.raises(ConfigError) as refused:
        place.run(spark, "tumbling_window")

    words = ["source 'events'", str(place.input), "cannot be read"]
    assert words == [word for word in words if word in str(refused.value)]
    assert [] == paths_under(place.root)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("no.such.module:job", ["no.such.module", "ModuleNotFoundError"]),
        ("{root}/broken.py:job", ["broken.py", "SyntaxError"]),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(spark, ready, entry, words):
    """
    The error says which module or file, and what Python said.
    """
    (ready.root / "broken.py").write_text("def job(ctx:\n", encoding="utf-8")
    ask = RunSpec(job_dir=str(ready.job_dir), entry=entry.format(root=ready.root))

    with pytest.raises(ConfigError) as refused:
        run_job(ask, spark=spark)

    assert words == [word for word in words if word in str(refused.value)]
    assert not ready.job_dir.exists()


@pytest.mark.spark
def test_an_error_found_by_spark_has_exit_code_2_and_is_one_json_document(ready):
    """
    From a shell, too, a job's mistake ends with 2; with ``--json`` stdout tells programs why.
    """
    entry = f"{JOBS}:missing_param"
    root = str(Path(airflow_provider.__file__).parents[1])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
    }

    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "airflow_provider.runtime.cli",
            *command(ready, "--json", entry=entry),
        ],
        cwd=ready.root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert EXIT_USAGE == done.returncode
    document = json.loads(done.stdout)
    assert ("ConfigError", EXIT_USAGE) == (document["error"], document["exit_code"])
    assert "'where_the_events_are'" in document["reason"]
    assert 1 == len([line for line in done.stderr.splitlines() if "spark-stream: error: " in line])
    assert not ready.job_dir.exists()
