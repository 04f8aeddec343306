"""Airflow's environment, set before any test module imports it; and what the tests share."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tests.airflow_home  # noqa: F401 - sets Airflow's environment

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from services import (  # noqa: E402 - found through the path just set
    ROOT,
    Airflow,
    airflow_environment,
    copy_dags,
    end_drivers,
    postgres_server,
    run_airflow,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

DRIVER_OUTLIVES_TASK = "AIRFLOW__SPARK_STREAM__DRIVER_OUTLIVES_TASK"
# Airflow reads .airflowignore with a class of pathspec that pathspec wants renamed.
_NOT_OURS = "ignore:GitWildMatchPattern:DeprecationWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, and let pass what only Airflow can change."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.airflow)
            item.add_marker(pytest.mark.filterwarnings(_NOT_OURS))


@pytest.fixture
def entry(tmp_path: Path) -> str:
    """Return an entry point whose file is there."""
    file = tmp_path / "jobs.py"
    file.write_text("def daily(ctx): ...\n")
    return f"{file}:daily"


@pytest.fixture
def callable_outside_of_a_task(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Airflow's own switch for tests: ``execute()`` may be called without a task runner.

    Tasks defer, also where the tests run in a container.
    """
    from airflow.sdk.bases.operator import ExecutorSafeguard

    monkeypatch.setenv(DRIVER_OUTLIVES_TASK, "True")
    before, ExecutorSafeguard.test_mode = ExecutorSafeguard.test_mode, True
    with variables_in_memory():
        yield
    ExecutorSafeguard.test_mode = before


@contextlib.contextmanager
def variables_in_memory() -> Iterator[dict[str, str]]:
    """Keep Airflow's variables in memory: outside of a task there is no server to ask."""
    from airflow.sdk import Variable

    kept: dict[str, str] = {}

    def get(key: str, default: Any = None, deserialize_json: bool = False) -> Any:  # noqa: FBT001, FBT002 - as Airflow's
        found = kept.get(key, default)
        return json.loads(found) if deserialize_json and found is not None else found

    def set_(key: str, value: Any, *_: Any, **__: Any) -> None:
        kept[key] = json.dumps(value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Variable, "get", get)
        patch.setattr(Variable, "set", set_)
        patch.setattr(Variable, "delete", kept.pop)
        yield kept


@pytest.fixture(scope="session")
def sqlite_airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Give the environment of an Airflow on SQLite, enough for ``dag.test()``."""
    folder = tmp_path_factory.mktemp("sqlite")
    dags = folder / "dags"
    copy_dags(ROOT / "dags", dags / "flights")
    copy_dags(HERE / "dags", dags / "tests")
    data = folder / "data"
    environment = airflow_environment(
        folder / "home",
        dags,
        FLIGHTS_DATA=str(data / "flights"),
        TEST_DATA=str(data),
        **{DRIVER_OUTLIVES_TASK: "True"},
    )
    run_airflow(["db", "migrate"], environment)
    yield environment
    end_drivers(data)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Give the URL of a PostgreSQL of our own."""
    with postgres_server() as url:
        yield url


# Ended with the last test that uses it, not with the process: parsing DAGs over and over again
# costs a quarter of a core.
_services = contextlib.ExitStack()


@pytest.fixture(scope="session")
def airflow_services(
    tmp_path_factory: pytest.TempPathFactory, postgres_url: str
) -> Iterator[Airflow]:
    """Give an Airflow of four real processes on PostgreSQL."""
    folder = tmp_path_factory.mktemp("services")
    dags = folder / "dags"
    copy_dags(ROOT / "dags", dags / "flights")
    copy_dags(HERE / "dags", dags / "tests")
    data = folder / "data"
    airflow = Airflow(
        folder / "home",
        dags,
        postgres_url,
        FLIGHTS_DATA=str(data / "flights"),
        TEST_DATA=str(data),
        TEST_SQL=postgres_url.replace("+psycopg2", "").replace("/airflow?", "/orders?"),
    )
    with _services:
        _services.callback(end_drivers, data)
        _services.callback(airflow.stop)
        airflow.start()
        yield airflow


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: Any, nextitem: Any) -> Any:
    """End Airflow's services behind the last test that uses them."""
    result = yield
    if "airflow_services" not in getattr(nextitem, "fixturenames", ()):
        _services.close()
    return result
