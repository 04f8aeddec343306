"""Public API: what users import, what importing costs, and what Airflow knows of the provider."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import airflow_provider
from airflow_provider import get_provider_info, runtime
from tests.present import present

HEAVY = ("airflow", "pyspark", "py4j", "fsspec", "pendulum", "rich")


def loaded_by(*modules: str) -> set[str]:
    """Return which heavy packages a new process has loaded after importing *modules*."""
    code = f"import sys, {', '.join(modules)}; print(*{HEAVY!r} & sys.modules.keys())"
    code = code.replace(repr(HEAVY), f"set({HEAVY!r})")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_the_public_names_are_these():
    """What a job's author imports is pinned; a change here is a change for users."""
    sinks = ["files", "for_each_batch", "spark_sink"]

    trying = ["preview", "run_in_memory"]

    assert sorted(["FailureClass", "JobContext", "fails_as", *sinks, *trying]) == runtime.__all__
    assert ["__version__", "get_provider_info"] == airflow_provider.__all__


@pytest.mark.parametrize("name", runtime.__all__)
def test_every_public_name_is_there(name):
    """A public name is loaded when it is asked for."""
    assert name == getattr(runtime, name).__name__


def test_an_unknown_name_is_an_attribute_error():
    """Asking for what is not there fails as with any module."""
    with pytest.raises(AttributeError, match=r"'airflow_provider\.runtime' has no attribute 'x'"):
        runtime.x  # noqa: B018 - the access is the test


@pytest.mark.parametrize("module", ["airflow_provider", "airflow_provider.runtime"])
def test_importing_the_package_is_cheap(module):
    """A DAG file that imports the package pays for no other."""
    assert set() == loaded_by(module)


def test_importing_the_interface_is_cheap():
    """A launcher on the triggerer, without Spark there, pays for neither Spark nor a store."""
    interface = Path(runtime.__file__).parent / "api"
    paths = [path.relative_to(interface).with_suffix("") for path in interface.rglob("[a-z]*.py")]
    modules = [".".join(path.parts) for path in paths if path.name != "object_stores"]

    assert {"errors", "kit.staging"} <= set(modules)
    assert set() == loaded_by(*(f"airflow_provider.runtime.api.{each}" for each in modules))


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        "airflow_provider.runtime.queries.context",
        "airflow_provider.runtime.cli.main",
        "airflow_provider.runtime.driver.run",
        "airflow_provider.runtime.samples.in_memory",
        "airflow_provider.runtime.sinks.files",
        "airflow_provider.runtime.observe.observer",
    ],
)
def test_the_runtime_loads_neither_airflow_nor_spark_by_itself(module):
    """The runtime's modules can be imported where only fsspec is there; Spark is loaded on use."""
    assert loaded_by(module) <= {"fsspec"}


@pytest.mark.slow
def test_a_cluster_without_what_airflow_brings_reads_durations():
    """A job that says after how long a source is idle runs where only PySpark and fsspec are."""
    code = """
import sys
from unittest.mock import MagicMock
sys.modules.update(dict.fromkeys(("airflow", "pendulum", "rich")))  # None: it cannot be imported
from airflow_provider.runtime.queries.context import JobContext
ctx = JobContext(MagicMock(), params={}, run_id="r", mode="STREAMING")
for name, idle in (("words", "3 seconds"), ("iso", "PT1M30S"), ("number", 5)):
    ctx.read(name, format="rate", watermark=("timestamp", "1 second"), idle_timeout=idle)
print(*(source.idle_timeout_s for source in ctx._sources))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert ("3.0 90.0 5.0\n", "") == (run.stdout, run.stderr)


@pytest.mark.slow
def test_the_lifecycle_loads_nothing():
    """The pure state machine needs no filesystem and no Spark."""
    assert set() == loaded_by("airflow_provider.runtime.driver.lifecycle")


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """Return Airflow's own schema of provider information, without importing Airflow."""
    spec = importlib.util.find_spec("airflow")
    if spec is None:
        pytest.skip("Airflow is not installed")
    return json.loads((Path(present(spec.origin)).parent / "provider_info.schema.json").read_text())


def test_the_provider_information_is_what_airflow_expects(schema):
    """Airflow's schema accepts the information that the entry point gives."""
    jsonschema.Draft7Validator.check_schema(schema)

    assert [] == list(jsonschema.Draft7Validator(schema).iter_errors(get_provider_info()))


def test_airflows_schema_would_refuse_nonsense(schema):
    """The check above can fail."""
    broken = {**get_provider_info(), "operators": "all of them"}

    assert [] != list(jsonschema.Draft7Validator(schema).iter_errors(broken))


def test_the_provider_names_modules_that_exist():
    """Every module that Airflow is told of can be found."""
    info = get_provider_info()
    modules = [
        module
        for room in ("operators", "sensors", "hooks", "triggers")
        for part in info[room]
        for module in part["python-modules"]
    ]

    assert modules
    assert all(importlib.util.find_spec(module) for module in modules)
    assert [airflow_provider.__version__] == info["versions"]
