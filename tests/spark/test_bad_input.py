"""Bad input that Spark has to look at is one clear error, before anything is written.

What is refused before Spark starts: tests/unit/test_bad_input.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from streams import JOBS, Location, write_events

import airflow_provider
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import EXIT_RETRY, AbsentInputError, ConfigError
from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.failures.classify import classify
from airflow_provider.runtime.jobdir.run_spec import RunSpec

pytestmark = pytest.mark.spark

EXIT_USAGE = 2


@pytest.fixture
def ready(location: Location) -> Location:
    """Return a location with a good input and nothing else."""
    write_events(location.input, [(1, "a", 1)])
    return location


def paths_under(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def command(
    location: Location, *more: str, entry: str = f"{JOBS}:tumbling_window", job_dir: str = ""
) -> list[str]:
    params = ("--param", f"input={location.input}", "--param", f"output={location.output}")
    return ["run", job_dir or str(location.job_dir), "--entry", entry, *params, *more]


@pytest.mark.parametrize(
    ("job", "asked", "words"),
    [
        ("missing_function", {}, ["'missing_function'", "it has "]),
        ("no_query", {}, ["no_query", "no query", "ctx.write"]),
        ("one_name_twice", {}, ["query 'twin'", "twice", "name of its own"]),
        ("unknown_sink", {}, ["query 'out'", "unknown sink 'console'", "files("]),
        ("missing_param", {}, ["'where_the_events_are'", "--param where_the_events_are="]),
        ("raising", {}, ["jobs.py:", "ZeroDivisionError", "no such day"]),
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
    """The error names the thing and the fix; neither job directory nor output is made."""
    before = paths_under(ready.root)

    with pytest.raises(ConfigError) as refused:
        ready.run(spark, job, **asked)

    assert EXIT_USAGE == refused.value.exit_code
    assert words == [word for word in words if word in str(refused.value)]
    assert before == paths_under(ready.root)


def test_an_input_that_cannot_be_read_is_named(spark, location):
    """A path that does not exist is an error of the source of that name, not an empty input."""
    with pytest.raises(AbsentInputError) as absent:
        location.run(spark, "tumbling_window")

    words = ["source 'events'", str(location.input), "cannot be read"]
    assert words == [word for word in words if word in str(absent.value)]
    assert EXIT_RETRY == absent.value.exit_code
    assert FailureClass.DATA_MISSING is classify(absent.value).failure_class
    assert [] == paths_under(location.root)


def test_a_run_that_does_not_wait_for_its_input_is_refused(spark, location):
    """With missing_input="fail" the same is exit code 2, so that nobody tries again."""
    with pytest.raises(ConfigError) as refused:
        location.run(spark, "tumbling_window", missing_input="fail")

    assert EXIT_USAGE == refused.value.exit_code
    assert str(location.input) in str(refused.value)
    assert [] == paths_under(location.root)


@pytest.mark.parametrize("mode", ["streaming", "automatic"])
def test_a_bounded_pattern_that_matches_nothing_is_no_empty_input(spark, location, mode):
    """Of 'hour=*' Spark makes a stream without rows; the run waits for a file instead."""
    location.input.mkdir()
    params = {"input": f"{location.input}/hour=07*"}

    with pytest.raises(AbsentInputError, match=r"hour=07\*"):
        location.run(spark, "tumbling_window", params=params, mode=mode)

    assert not location.job_dir.exists()


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("no.such.module:job", ["no.such.module", "ModuleNotFoundError"]),
        ("{root}/broken.py:job", ["broken.py", "SyntaxError"]),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(spark, ready, entry, words):
    """The error says which module or file, and what Python said."""
    (ready.root / "broken.py").write_text("def job(ctx:\n", encoding="utf-8")
    ask = RunSpec(job_dir=str(ready.job_dir), entry=entry.format(root=ready.root))

    with pytest.raises(ConfigError) as refused:
        run_job(ask, spark=spark)

    assert words == [word for word in words if word in str(refused.value)]
    assert not ready.job_dir.exists()


@pytest.mark.whole
def test_an_error_found_by_spark_has_exit_code_2_and_is_one_json_document(ready):
    """From a shell, too, a job's mistake ends with 2; with ``--json`` stdout tells programs why."""
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
