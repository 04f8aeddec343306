"""Fixes: each in the words of the caller, and for the form that the job has."""

from __future__ import annotations

import ast
import re
import threading
from pathlib import Path

import pytest

from airflow_provider.runtime.entry_point import form_of
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.fixes import (
    FROM_SCRATCH,
    PACKAGES,
    RESTORE_ELSEWHERE,
    Caller,
    Form,
    addressing,
    set_conf,
    set_option,
    set_param,
    words,
)
from airflow_provider.runtime.failures.classify import classify
from airflow_provider.runtime.jobdir.run_spec import parse_interval
from airflow_provider.runtime.queries.params import Params

ROOT = Path(__file__).resolve().parents[2]
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
# Texts that only a user of a shell gets, and the command lines that launchers put together.
ONLY_IN_A_SHELL = [
    "extensions/comparisons/comparing.py",
    "extensions/comparisons/first_run.py",
    "extensions/comparisons/operator.py",
    "extensions/comparisons/scratch.py",
    "extensions/comparisons/scratch_job.py",
    "extensions/maintenance/decision.py",
    "extensions/maintenance/operator.py",
    "extensions/warm_drivers/static_fields.py",
    "runtime/base/runtime_zip.py",
    "runtime/control/launcher.py",
    "runtime/control/spark_submit.py",
    "runtime/jobdir/end_of_input.py",
    "runtime/jobdir/run_spec.py",
]
NO_FUNCTION_WORDS = ("ctx.", "watermark=", "schema=", "bounded=")
WORKER = """Traceback (most recent call last):
  File "/app/lib/pyspark/worker.py", line 1, in main
    process()
ModuleNotFoundError: No module named 'prices'
"""


def test_a_caller_gets_its_own_options():
    """The command line is told of flags, an operator of its arguments."""
    asked = [set_param("folder"), set_option("mode", "batch"), set_conf("spark.x", "1")]
    asked.append(set_conf(PACKAGES, "g:a:1"))
    with addressing(caller=Caller.OPERATOR):
        in_a_dag = [set_param("folder"), set_option("mode", "batch"), set_conf("spark.x", "1")]
        in_a_dag.append(set_conf(PACKAGES, "g:a:1"))

    assert [
        "pass --param folder=VALUE",
        "--mode batch",
        "--conf spark.x=1",
        "--conf spark.jars.packages=g:a:1",
    ] == asked
    assert [
        'give the operator params={"folder": …}',
        'mode="batch" of the operator',
        'conf={"spark.x": "1"} of the operator',
        'packages="g:a:1" of the operator',
    ] == in_a_dag


def flags_outside_of_ways_out(path: Path) -> list[str]:
    """Return the texts of a module that name an option of the command line to every caller."""
    tree = ast.parse(path.read_text())
    excused: set[ast.AST] = set()
    for node in ast.walk(tree):
        match node:
            case (
                ast.Expr() | ast.Call(func=ast.Name(id="option" | "duration_option" | "of_caller"))
            ):
                excused |= set(ast.walk(node))  # docstrings; and what takes or defines an option
            case _:
                pass
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in excused
    ]
    return [text for text in texts if FLAG.search(text) and "spark-stream " not in text]


@pytest.mark.long
def test_no_message_of_a_run_names_an_option_to_every_caller():
    """
    Each text that a driver may show takes the name of an option from the fixes; modules that
    only a shell reaches are named here.
    """
    package = ROOT / "airflow_provider"
    modules = [
        path
        for room in ("runtime", "extensions")
        for path in (package / room).rglob("*.py")
        if not path.stem.endswith(("_command", "_commands", "_output", "fixes"))
        and "cli" not in path.parts
    ]
    found = {
        path.relative_to(package).as_posix(): texts
        for path in modules
        if (texts := flags_outside_of_ways_out(path))
    }

    assert ONLY_IN_A_SHELL == sorted(found)


OFFER = re.compile(r"\b(use|start|begin|take|restore|or)( \w+)* (a new|another) job directory")


def test_no_refusal_offers_another_job_directory_without_its_price():
    """Only the shared texts offer one: they say what is read and written again."""
    offers = [
        f"{path.name}: {node.value!s}"
        for path in (ROOT / "airflow_provider").rglob("*.py")
        if path.stem != "fixes"
        for statement in ast.walk(ast.parse(path.read_text()))
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.Return)  # no docstring
        for node in ast.walk(statement)
        if isinstance(node, ast.Constant) and OFFER.search(str(node.value))
    ]

    assert [] == offers
    assert all(OFFER.search(text) for text in (FROM_SCRATCH, RESTORE_ELSEWHERE))


def test_a_task_gets_the_operators_words():
    """What a worker refuses before a driver is submitted names arguments, too."""
    retry_policy = pytest.importorskip("airflow_provider.operators.retry_policy")
    exceptions = pytest.importorskip("airflow_provider.airflow_versions")
    with (
        pytest.raises(exceptions.AirflowFailException, match=r"^interval today now: write two"),
        retry_policy.task_errors(),
    ):
        parse_interval(["today", "now"])
    with pytest.raises(ConfigError, match=r"^--interval today now: write two"):
        parse_interval(["today", "now"])


def test_a_missing_parameter_names_the_callers_way_out():
    """In a DAG a parameter is given to the operator, on the command line as an option."""
    with pytest.raises(ConfigError, match="pass --param folder=VALUE"):
        Params({})["folder"]
    in_a_dag = pytest.raises(ConfigError, match=r'give the operator params=\{"folder": …\}')
    with addressing(caller=Caller.OPERATOR), in_a_dag:
        Params({})["folder"]


@pytest.mark.parametrize("form", [Form.SCRIPT, Form.SQL])
def test_a_program_is_not_told_of_ctx(form):
    """No fix of a script or a file of SQL is one that only a job's function has."""
    with addressing(form=form):
        found = words()

    assert found.keys() == words().keys()
    assert [] == [w for w in found.values() if any(no in w for no in NO_FUNCTION_WORDS)]


def test_a_computation_with_a_stream_is_explained_for_a_script():
    """A script writes with writeStream, a function with ctx.write."""
    error = RuntimeError("Queries … must be executed with writeStream.start();")
    with addressing(form=Form.SCRIPT):
        in_a_script = classify(error)

    assert "writeStream…start(…)" in in_a_script.remedy
    assert "a script only declares its streams" in in_a_script.reason
    assert "ctx.write" in classify(error).remedy


def test_a_module_is_installed_where_it_is_missing():
    """A module that the driver misses is not looked for on Spark's workers."""
    on_the_driver = classify(ModuleNotFoundError("No module named 'findspark'", name="findspark"))
    in_a_worker = classify(RuntimeError(WORKER))

    assert on_the_driver.remedy.startswith("install it where the driver runs, or ship the file")
    assert in_a_worker.remedy.startswith("install it where Spark's workers run, or ship the file")


def test_a_reader_is_that_of_all_threads_until_the_job_is_done():
    """A script's thread words its errors for the same reader; afterwards there is none of it."""
    found: list[str] = []
    with addressing(caller=Caller.OPERATOR), addressing(form=Form.SQL):
        thread = threading.Thread(target=lambda: found.append(set_option("mode", "batch")))
        thread.start()
        thread.join()

    assert ['mode="batch" of the operator'] == found
    assert "--mode batch" == set_option("mode", "batch")


def test_a_form_is_that_of_the_entry():
    """A file is a program, a function of one is not."""
    entries = ["jobs.py:daily", "pkg.mod:daily", "etl.py", "s3://b/etl.sql"]

    assert [Form.FUNCTION, Form.FUNCTION, Form.SCRIPT, Form.SQL] == [form_of(e) for e in entries]
