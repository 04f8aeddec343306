"""The section ``[spark_stream]`` of Airflow's configuration: its options, and wrong values."""

from __future__ import annotations

import configparser
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.cli import cli_config
from services import AIRFLOW

import airflow_provider
from airflow_provider import get_provider_info
from airflow_provider.hooks import airflow_settings
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

OPTIONS = get_provider_info()["config"]["spark_stream"]["options"]


def say(monkeypatch: pytest.MonkeyPatch, option: str, value: str) -> None:
    monkeypatch.setenv(f"AIRFLOW__SPARK_STREAM__{option.upper()}", value)


@pytest.mark.long
def test_airflow_lists_the_section_with_its_defaults(tmp_path: Path) -> None:
    """``airflow config list`` knows the provider's section as it knows Airflow's own."""
    command = [str(AIRFLOW), "config", "list", "--section", "spark_stream"]
    if hasattr(cli_config, "ARG_CONFIG_SHOW_VALUES"):  # other versions show them always
        command.append("--show-values")
    listed = subprocess.run(
        command,
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    found = configparser.ConfigParser()
    found.read_string(listed.stdout[listed.stdout.index("[spark_stream]") :])
    defaults = {name: option["default"] for name, option in OPTIONS.items()}
    assert defaults == dict(found["spark_stream"])


@pytest.mark.parametrize(
    ("read", "value", "expected"),
    [
        (airflow_settings.history_server, None, None),
        (airflow_settings.history_server, "https://spark.example:18080/ui/", "https://spark.example:18080/ui"),
        (airflow_settings.driver_outlives_task, None, None),
        (airflow_settings.driver_outlives_task, "True", True),
        (airflow_settings.driver_outlives_task, "false", False),
        (airflow_settings.local_drivers, None, ""),
        (airflow_settings.local_drivers, "4", "4"),
        (airflow_settings.local_drivers, "off", "off"),
        (airflow_settings.metrics, None, True),
        (airflow_settings.metrics, "False", False),
        (airflow_settings.refresh_s, None, 5.0),
        (airflow_settings.refresh_s, "1.5", 1.5),
    ],
)  # fmt: skip
def test_an_option_is_what_the_configuration_says(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[], Any], value: str | None, expected: Any
) -> None:
    """Or else its default, in its own type."""
    if value is not None:
        say(monkeypatch, read.__name__, value)

    assert expected == read()


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (airflow_settings.history_server, "history.example:18080"),
        (airflow_settings.history_server, "javascript://alert(1)"),
        (airflow_settings.history_server, "https://"),
        (airflow_settings.driver_outlives_task, "sometimes"),
        (airflow_settings.local_drivers, "0"),
        (airflow_settings.local_drivers, "many"),
        (airflow_settings.metrics, "perhaps"),
        (airflow_settings.refresh_s, "soon"),
        (airflow_settings.refresh_s, "0"),
        (airflow_settings.refresh_s, "nan"),
        (airflow_settings.refresh_s, "inf"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_section_and_option(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[], Any], value: str
) -> None:
    """One line says what it is, and what it may be."""
    say(monkeypatch, read.__name__, value)

    with pytest.raises(ConfigError, match=rf"^\[spark_stream\] {read.__name__} = '.*' in .*: "):
        read()


def test_the_page_of_the_options_has_each() -> None:
    """The table for users and the provider's own description do not drift apart."""
    page = (Path(airflow_provider.__file__).parents[1] / "docs/configuration.md").read_text()

    assert [] == [name for name in OPTIONS if f"| `{name}` |" not in page]
    assert {name for name in OPTIONS if callable(getattr(airflow_settings, name, None))} == set(
        OPTIONS
    )
