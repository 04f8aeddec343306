"""A real task whose rows break a rule too often: red with the rule and its rows, and then green."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from tests.present import present

if TYPE_CHECKING:
    from services import Airflow

pytestmark = [pytest.mark.whole, pytest.mark.spark, pytest.mark.timeout(400)]

JOB = f"{Path(__file__).parents[1] / 'spark' / 'row_jobs.py'}:checked"
START = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
RULES = [{"name": "small", "rule": "v < 8", "on": "quarantine", "limit": 3}]
LAST_LINES = 6


def write(folder: Path, *values: list[int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(values):
        lines = (
            f"{START + dt.timedelta(seconds=10 * number + n):%F %T},a,{v}\n"
            for n, v in enumerate(file)
        )
        (folder / f"{number}.csv").write_text("".join(lines), encoding="utf-8")


def test_a_limit_that_is_crossed_fails_the_task_until_its_input_is_repaired(
    airflow_services: Airflow,
) -> None:
    """
    The last lines of the red task's log have the rule and three rows; what was published before
    stays. The input is repaired and the task cleared: green, and each row is in one place.
    """
    airflow = airflow_services
    location = Path(airflow.environment["TEST_DATA"]) / "checked"
    write(location / "input", [1, 2, 8], [9, 9, 10, 11, 3])
    (location / "rules.json").write_text(json.dumps(RULES), encoding="utf-8")

    run_id = airflow.trigger("checked", conf={"job": JOB, "location": str(location)})
    states = airflow.follow("checked", run_id, "rows", until=("success", "failed"), within=120)
    log = airflow.logs("checked", run_id, "rows")
    assert "failed" == states[-1], log
    end = "\n".join(log.splitlines()[-LAST_LINES:]).replace("\\", "")
    assert "rule 'small' is broken by 5 of the run's 8 rows, and 3 rows are accepted" in end
    shown = present(re.search("Some of them: (.*?); correct the input", end))[1].split("; ")
    assert 3 == len({json.loads(row)["time"] for row in shown if json.loads(row)["v"] >= 8})
    assert [1, 2] == sorted(pd.read_parquet(location / "output")["v"])

    write(location / "input", [1, 2, 8], [4, 9, 5, 6, 3])
    airflow.clear("checked", run_id, "rows")
    states = airflow.follow("checked", run_id, "rows", until=("success", "failed"), within=120)

    assert "success" == states[-1], airflow.logs("checked", run_id, "rows")
    assert [1, 2, 3, 4, 5, 6] == sorted(pd.read_parquet(location / "output")["v"])
    kept = pd.read_parquet(location / "kept")
    assert [8, 9] == sorted(json.loads(row)["v"] for row in kept["row"])
    assert {"small"} == set(kept["location"])
    (final,) = (json.loads(p.read_text()) for p in location.glob("job/runs/*/final.json"))
    assert ("FINISHED", 8) == (final["outcome"], final["rows_read"])
