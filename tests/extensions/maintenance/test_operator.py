"""``SparkMaintainOperator``: the real command, and a program in its place."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.airflow


@pytest.fixture
def operator_module() -> Any:
    from airflow_provider.extensions.maintenance import operator

    return operator


def task_of(operator_module: Any, **arguments: Any) -> Any:
    return operator_module.SparkMaintainOperator(
        task_id="maintain", **{"table": "/tables/daily", **arguments}
    )


def test_the_command_gets_what_the_task_was_given(command, operator_module):
    """
    Each list as options of its own.
    """
    command("print(json.dumps({'lines': sys.argv[1:]}))")

    given = task_of(
        operator_module,
        job_dirs=["/jobs/a", "/jobs/b"],
        readers=["/jobs/c"],
        savepoints=["/saved"],
        keep="1 day",
        accept_short_keep=True,
        target_size="1GB",
        catalog="prod",
        dry_run=True,
    )

    said = (
        "maintain /tables/daily --job-dir /jobs/a --job-dir /jobs/b --reader /jobs/c "
        "--savepoints /saved --keep|1 day --target-size 1GB --catalog prod --accept-short-keep "
        "--dry-run --json"
    )
    assert "|".join(given.execute({})["lines"]) == said.replace(" ", "|").replace("1|day", "1 day")
    assert ["maintain", "/tables/daily", "--json"] == task_of(operator_module).execute({})["lines"]


def test_a_table_is_maintained(tmp_path, operator_module):
    """
    The result is the report, as JSON has it.
    """
    import pyarrow as pa
    from deltalake import write_deltalake

    for number in range(3):
        write_deltalake(str(tmp_path / "t"), pa.table({"id": [number]}), mode="append")

    report = task_of(operator_module, table=str(tmp_path / "t")).execute({})

    assert (3, 1) == (report["before"]["files"], report["after"]["files"])


@pytest.mark.parametrize(("code", "name"), [(2, "AirflowFailException"), (3, "AirflowException")])
def test_the_last_line_of_the_log_is_the_error(command, operator_module, code, name):
    """
    A refusal fails permanently; an outage may pass.
    """
    from airflow_provider import airflow_versions

    command(f"sys.stderr.write('no such table\\n'); sys.exit({code})")

    with pytest.raises(getattr(airflow_versions, name), match="no such table") as raised:
        task_of(operator_module).execute({})
    assert name == type(raised.value).__name__


def test_a_killed_task_ends_the_command(command, operator_module):
    """
    With SIGTERM; the next call completes what was begun.
    """
    from airflow_provider.airflow_versions import AirflowException

    command("print('waits', file=sys.stderr, flush=True); signal.pause()")
    task = task_of(operator_module)
    task.log.info = lambda *_: task.on_kill()  # at the first line of the command's log

    with pytest.raises(AirflowException, match="exit code -15"):
        task.execute({})


def test_one_address_in_the_place_of_a_list_is_refused(operator_module):
    """
    When the DAG is parsed.
    """
    from airflow_provider.runtime.errors import ConfigError

    with pytest.raises(ConfigError, match=r"job_dirs='/jobs/a': a list of addresses"):
        task_of(operator_module, job_dirs="/jobs/a")
