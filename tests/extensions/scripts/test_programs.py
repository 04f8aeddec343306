"""Ways to name a job: on the command line, by an operator, and where its file travels."""

from __future__ import annotations

import argparse
import sys

import pytest

from airflow_provider.operators.job_name import name_job
from airflow_provider.runtime.cli.command_parser import (
    add_options,
    add_programs,
    named_program,
    read_options,
    split_arguments,
)
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.entry_point import (
    check_entry,
    file_of,
    is_program,
    program_file,
    shipped_entry,
)
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.run_spec import RunSpec


def asked(*argv: str) -> RunSpec:
    own, script_args = split_arguments(["run", "/job", *argv])
    parser = argparse.ArgumentParser()
    add_programs(add_options(parser, RunSpec))
    arguments = parser.parse_args(own[1:])
    arguments.script_args = script_args
    return read_options(named_program(arguments), RunSpec)


def test_a_script_is_named_with_its_own_command_line():
    """What follows the two dashes is the script's, whatever it looks like."""
    spec = asked("--script", "etl.py", "--param", "n:=1", "--", "--input", "/in", "--", "-v")

    assert "etl.py" == spec.entry
    assert {"n": 1, "args": ["--input", "/in", "--", "-v"]} == spec.params


def test_the_dashes_of_other_commands_are_their_own():
    """Only a run has a script, and its check."""
    assert (["check", "/job"], ["-x"]) == split_arguments(["check", "/job", "--", "-x"])
    assert (["ls", "--", "-x"], None) == split_arguments(["ls", "--", "-x"])


def test_a_file_of_sql_and_a_function_are_named():
    """Each in its own option."""
    assert "job.sql" == asked("--sql", "job.sql").entry
    assert ("jobs.py:f", {}) == (
        asked("--entry", "jobs.py:f").entry,
        asked("--sql", "a.sql").params,
    )


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--script", "a.py:f"], "name a file that ends with .py"),
        (["--sql", "a.py"], "name a file that ends with .sql"),
        (["--entry", "a.py:f", "--", "-v"], "is the command line of a script"),
        (["--entry", "a.py"], r"names no function; write a\.py:FUNCTION, or --script a\.py"),
        (["--entry", "a.sql"], r"names no function; write --sql a\.sql"),
    ],
)
def test_a_program_is_of_its_kind(argv, reason):
    """A file that is not is refused, and the command line of what has none."""
    with pytest.raises(ConfigError, match=reason):
        asked(*argv)


@pytest.mark.parametrize(
    "argv",
    [(), ("--script", "a.py", "--sql", "b.sql"), ("--script", "a.py", "--entry", "a.py:f")],
)
def test_one_job_is_named(argv, capsys):
    """Several are bad usage, and none is."""
    with pytest.raises(SystemExit):
        asked(*argv)
    assert "--script" in capsys.readouterr().err


def test_the_arguments_of_a_script_without_their_dashes_are_named(capsys):
    """The way to give them is said; a command without a script has no such way."""
    for argv, said in (
        (["--script", "a.py", "--input", "/the in"], "follows --: … -- --input '/the in'\n"),
        (["--entry", "a.py:f", "--inputs"], "there is no option --inputs"),
    ):
        assert 2 == main(["run", "/job", *argv])
        assert said in capsys.readouterr().err


def test_an_operator_names_one_job():
    """By one of three arguments; a template may become anything."""
    assert "a.py" == name_job(None, "a.py", None)
    assert "{{ x }}" == name_job(None, None, "{{ x }}")
    for given in ((None, None, None), ("a.py:f", "a.py", None)):
        with pytest.raises(ConfigError, match="name one job"):
            name_job(*given)
    with pytest.raises(ConfigError, match=r"sql='a\.py': name a file that ends with \.sql"):
        name_job(None, None, "a.py")
    for text, instead in (("a.py", "script"), ("a.sql", "sql")):
        with pytest.raises(ConfigError, match=f"names no function; .* or {instead}='{text}'"):
            name_job(text, None, None)


def test_a_program_is_told_from_a_function():
    """A module's function, whatever its name, is none."""
    kinds = {"a.py": True, "/x/a.sql": True, "a.py:f": False, "pkg.mod:f": False}
    assert kinds == {entry: is_program(entry) for entry in kinds}
    check_entry("a.py")
    with pytest.raises(ConfigError, match=r"write FILE\.py:FUNCTION"):
        check_entry("nothing")


@pytest.mark.parametrize(
    ("entry", "file", "shipped"),
    [
        ("/x/etl.py", "/x/etl.py", "etl.py"),
        ("s3://b/x/job.sql", "s3://b/x/job.sql", "job.sql"),
        ("/x/jobs.py:daily", "/x/jobs.py", "jobs:daily"),
        ("pkg.mod:daily", None, "pkg.mod:daily"),
    ],
)
def test_the_file_of_a_job_travels_with_its_driver(entry, file, shipped):
    """There it lies in the driver's folder, or where Python looks for modules."""
    assert (file, shipped) == (file_of(entry), shipped_entry(entry))


def test_a_program_that_has_travelled_is_found(tmp_path, monkeypatch):
    """In a folder on Python's path; a path that says where it is, is only looked for there."""
    (tmp_path / "etl.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])

    assert (tmp_path / "etl.py").resolve() == program_file("etl.py")
    with pytest.raises(ConfigError, match=r"there is no file elsewhere/etl\.py"):
        program_file("elsewhere/etl.py")
