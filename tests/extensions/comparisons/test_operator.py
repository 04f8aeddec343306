"""``SparkCompareOperator``, with a program in the place of ``spark-stream``."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.airflow

REPORT = {"version": 1, "verdict": "DIFFERENT", "lines": ["DIFFERENT: a and b", "  out -> files"]}


@pytest.fixture
def operator_module() -> Any:
    from airflow_provider.extensions.comparisons import operator

    return operator


def task_of(operator_module: Any, **arguments: Any) -> Any:
    return operator_module.SparkCompareOperator(
        task_id="compare", **{"job_dir": "/jobs/daily", **arguments}
    )


def test_a_report_is_the_text_of_an_approval(command, operator_module):
    """
    The task succeeds although the results differ, and returns the lines for people.
    """
    command(f"print({json.dumps(json.dumps(REPORT))}); sys.exit(6)")

    found = task_of(operator_module).execute({})

    text = "DIFFERENT: a and b\n  out -> files"
    assert {"verdict": "DIFFERENT", "equal": False, "report": text} == found


def test_the_command_gets_what_the_task_was_given(command, operator_module):
    """
    As a verification, and as a comparison with a new version.
    """
    told = "print(json.dumps({'verdict': 'EQUAL', 'lines': sys.argv[1:]}))"
    command(told)

    verified = task_of(operator_module, run_id="r1", mode="streaming", master="local[2]")
    compared = task_of(
        operator_module,
        job="new.py:daily",
        run_id="r1",
        params={"top": 5},
        key={"out": ["a", "b"], "": ["k"]},
        conf={"a": "b"},
        scratch="/shared",
    )

    said = "verify /jobs/daily r1 --mode streaming --master local[2] --json"
    assert said.split() == verified.execute({})["report"].split("\n")
    said = (
        "compare /jobs/daily new.py:daily --run-id r1 --param top:=5 --key out:a,b --key :k "
        "--conf a=b --scratch /shared --json"
    )
    assert said.split() == compared.execute({})["report"].split("\n")


def test_a_difference_fails_the_task_if_that_is_asked_for(command, operator_module):
    """
    Permanently, with the report.
    """
    from airflow_provider.airflow_versions import AirflowFailException

    command(f"print({json.dumps(json.dumps(REPORT))}); sys.exit(6)")

    with pytest.raises(AirflowFailException, match="DIFFERENT: a and b"):
        task_of(operator_module, fail_on_difference=True).execute({})


@pytest.mark.parametrize(("code", "name"), [(2, "AirflowFailException"), (3, "AirflowException")])
def test_the_last_line_of_the_log_is_the_error(command, operator_module, code, name):
    """
    A run that cannot be computed again fails permanently; an outage may pass.
    """
    from airflow_provider import airflow_versions

    command(
        f"print('started', file=sys.stderr); sys.stderr.write('no such run\\n'); sys.exit({code})"
    )

    with pytest.raises(getattr(airflow_versions, name), match="no such run") as raised:
        task_of(operator_module).execute({})
    assert name == type(raised.value).__name__


def test_a_killed_task_ends_the_command(command, operator_module):
    """
    With SIGTERM, on which the command removes its scratch folder.
    """
    from airflow_provider.airflow_versions import AirflowException

    command("print('waits', file=sys.stderr, flush=True); signal.pause()")
    task = task_of(operator_module)
    task.log.info = lambda *_: task.on_kill()  # at the first line of the command's log

    with pytest.raises(AirflowException, match="exit code -15"):
        task.execute({})


def test_arguments_that_mean_nothing_are_refused(operator_module):
    """
    When the DAG is parsed.
    """
    from airflow_provider.runtime.errors import ConfigError

    with pytest.raises(ConfigError, match="params are those of a new version"):
        task_of(operator_module, params={"top": 5})
    with pytest.raises(ConfigError, match="leave mode out"):
        task_of(operator_module, job="new.py:daily", mode="batch")


def test_the_report_can_be_the_body_of_an_approval(command, operator_module):
    """
    Airflow renders the body of its own operator, with the report that the task has returned.
    """
    from airflow.providers.standard.operators.hitl import ApprovalOperator

    command(f"print({json.dumps(json.dumps(REPORT))}); sys.exit(6)")
    found = task_of(operator_module).execute({})
    approve = ApprovalOperator(
        task_id="approve",
        subject="Replace version 1?",
        body="```text\n{{ ti.xcom_pull(task_ids='compare')['report'] }}\n```",
    )

    pulled: Any = SimpleNamespace(xcom_pull=lambda task_ids: {"compare": found}[task_ids])
    approve.render_template_fields({"ti": pulled})

    assert "```text\nDIFFERENT: a and b\n  out -> files\n```" == approve.body
