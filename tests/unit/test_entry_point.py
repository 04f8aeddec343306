"""Entry points, resolved to the job's function."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from airflow_provider.runtime.entry_point import (
    check_entry_file,
    load_before_spark,
    load_entry,
    split_entry,
)
from airflow_provider.runtime.errors import EXIT_USAGE, ConfigError
from airflow_provider.runtime.errors.explanation import line_of


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch):
    """Forget what a test imports and where it looked."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder, name: str, text: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.parametrize(
    ("entry", "parts"),
    [
        ("jobs/a.py:job", ("jobs/a.py", "job")),
        ("pkg.mod:job", ("pkg.mod", "job")),
        ("C:/jobs/a.py:job", ("C:/jobs/a.py", "job")),
    ],
)
def test_an_entry_has_two_parts(entry, parts):
    """The function's name stands after the last colon."""
    assert parts == split_entry(entry)


@pytest.mark.parametrize("entry", ["", ":", "a.py", "a.py:", ":job", "a.py:1st", "a.py:a b"])
def test_what_is_no_entry_is_refused(entry):
    """A text that is not an entry point is shown, with how to write one."""
    with pytest.raises(ConfigError, match=r"write FILE\.py:FUNCTION or package\.module:FUNCTION"):
        split_entry(entry)


def test_a_function_in_a_file(tmp_path):
    """The function of a file is loaded, wherever the file lies."""
    location = write(tmp_path, "job.py", "def daily(ctx):\n    return ['daily', ctx]\n")

    assert ["daily", 1] == load_entry(f"{location}:daily")(1)


def test_a_function_in_a_module(tmp_path, monkeypatch):
    """The function of an importable module is loaded by the module's name."""
    write(tmp_path / "entry_pkg", "__init__.py", "")
    write(tmp_path / "entry_pkg", "mod.py", "def daily(ctx):\n    return 'daily'\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert "daily" == load_entry("entry_pkg.mod:daily")(None)


def test_a_file_imports_its_neighbours(tmp_path):
    """A job file can import the modules beside it, as when it is run by Python itself."""
    write(tmp_path, "entry_neighbour.py", "WORD = 'hello'\n")
    location = write(
        tmp_path, "job.py", "from entry_neighbour import WORD\ndef job(ctx):\n    return WORD\n"
    )

    assert "hello" == load_entry(f"{location}:job")(None)


def test_two_files_of_one_name_are_two_jobs(tmp_path):
    """Two jobs in one process may both be called ``job.py``."""
    first = write(tmp_path / "a", "job.py", "def job(ctx):\n    return 'a'\n")
    second = write(tmp_path / "b", "job.py", "def job(ctx):\n    return 'b'\n")
    jobs = [load_entry(f"{location}:job") for location in (first, second)]

    assert ["a", "b"] == [job(None) for job in jobs]


def test_a_file_that_was_changed_is_loaded_anew(tmp_path):
    """A process that runs a job again runs the program as it is now."""
    location = write(tmp_path, "job.py", "def job(ctx):\n    return 'old'\n")
    load_entry(f"{location}:job")
    write(tmp_path, "job.py", "def job(ctx):\n    return 'newer'\n")

    assert "newer" == load_entry(f"{location}:job")(None)


@pytest.mark.parametrize(
    ("text", "entry", "complaint"),
    [
        (None, "{}/missing.py:job", "there is no file .*missing.py"),
        (
            "",
            "no_such_package.mod:job",
            "importing no_such_package.mod failed: ModuleNotFoundError",
        ),
        ("def (:", "{}/job.py:job", "importing .*job.py failed: SyntaxError"),
        ("import no_such_thing", "{}/job.py:job", "ModuleNotFoundError.*no_such_thing"),
        ("1 / 0", "{}/job.py:job", "ZeroDivisionError: division by zero"),
        ("def a(c): ...\ndef b(c): ...\n", "{}/job.py:job", "no function 'job'; it has a, b"),
        ("job = 7", "{}/job.py:job", "no function 'job'; it has none"),
    ],
)
def test_an_entry_that_does_not_load_says_why(tmp_path, text, entry, complaint):
    """A missing file, module or function, or a program that does not import, is one clear error."""
    if text is not None:
        write(tmp_path, "job.py", text)

    with pytest.raises(ConfigError, match=complaint) as raised:
        load_entry(entry.format(tmp_path))
    assert "entry " in str(raised.value)
    assert EXIT_USAGE == raised.value.exit_code


def test_a_file_that_exits_when_it_is_imported(tmp_path):
    """A job file that calls ``sys.exit`` while it is imported is an error, not the driver's end."""
    location = write(tmp_path, "job.py", "import sys\nsys.exit(0)\n")

    with pytest.raises(ConfigError):
        load_entry(f"{location}:job")


def test_only_files_are_checked_where_they_may_not_run(tmp_path):
    """
    Whether a module exists is known only where it runs, whether a file exists is known at once.
    """
    location = write(tmp_path, "job.py", "")
    check_entry_file(f"{location}:anything")
    check_entry_file("no_such_package.mod:job")

    with pytest.raises(ConfigError, match="there is no file"):
        check_entry_file(f"{tmp_path}/other.py:job")


def test_an_entry_that_starts_spark_is_refused(tmp_path, monkeypatch):
    """
    A session that a job's file makes when it is imported would not have the run's settings; it is
    stopped. One that was there before stays.
    """
    stopped: list[str] = []
    spark = SimpleNamespace(_active_spark_context=None)
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(SparkContext=spark))
    monkeypatch.setattr(
        sys, "started_here", SimpleNamespace(stop=lambda: stopped.append("here")), raising=False
    )
    text = (
        "import pyspark, sys\n"
        "pyspark.SparkContext._active_spark_context = sys.started_here\n"
        "def job(ctx): ...\n"
    )
    location = write(tmp_path, "job.py", text)

    with pytest.raises(ConfigError, match=r"importing .*job.py starts Spark, .* take ctx\.spark"):
        load_before_spark(f"{location}:job")
    assert ["here"] == stopped

    load_before_spark(f"{location}:job")
    assert ["here"] == stopped


def test_an_error_in_the_function_has_its_line(tmp_path):
    """The line is the innermost one in the job's own file, however deep the error has come from."""
    location = write(
        tmp_path,
        "job.py",
        "import json\ndef job(ctx):\n    part(ctx)\ndef part(ctx):\n    json.loads('{')\n",
    )
    function = load_entry(f"{location}:job")

    with pytest.raises(json.JSONDecodeError) as raised:
        function(None)

    assert "job.py:5" == line_of(raised.value)
    assert "" == line_of(ValueError("from elsewhere"))
