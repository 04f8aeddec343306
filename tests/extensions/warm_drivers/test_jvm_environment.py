"""The environment of a warm driver's JVM: the run's in place of the pool's, and none of it shipped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow_provider.extensions.warm_drivers.standby import replace_environment

from airflow_provider.extensions.warm_drivers import standby

POOLS = {"POOL_ONLY": "of the pool", "PATH": "/pool", "LANG": "C"}
RUNS = {"CLIENT_SECRET": "s3cr3t", "PATH": "/run", "LANG": "C"}


class Table(dict[str, str]):
    """Java's table of variables, by the methods of its class."""

    def put(self, name: str, value: str) -> None:
        self[name] = value

    def remove(self, name: str) -> None:
        del self[name]


@pytest.mark.parametrize(("master", "shipped"), [("local[2]", 1), ("yarn", 0)])
def test_the_runs_variables_take_the_place_of_the_pools(monkeypatch, master, shipped):
    """
    Those of the pool alone are gone, what spark-submit has set stays, and functions carry no value
    of the run: on a cluster nothing, else the mark that keeps workers of the warm-up away.
    """
    table = Table({**POOLS, "SPARK_HOME": "/spark"})
    monkeypatch.setattr(standby, "environment_table", lambda _: table)
    context = SimpleNamespace(master=master, environment={})
    spark: Any = SimpleNamespace(sparkContext=context)

    replace_environment(spark, POOLS, RUNS)

    assert {**RUNS, "SPARK_HOME": "/spark"} == table
    assert shipped == len(context.environment)
    assert RUNS.keys().isdisjoint(context.environment)
