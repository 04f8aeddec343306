"""Clear text: a secret that is also given as something else, and keys that show one."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider.runtime.driver.job_checks import check_kept_secret, check_names_and_locations
from airflow_provider.runtime.errors import ConfigError, redaction
from airflow_provider.runtime.errors.redaction import Secrets
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.run_spec import RunSpec, check_not_in_clear_text
from airflow_provider.runtime.spark.spark_log import check_event_log, settings_without_ui
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import a_submission
from tests.declaring import declared

_VALUES = {"salt": "pepper-4711-hunter2", "word": "postgres"}


def _spec(**given: object) -> RunSpec:
    return RunSpec(**{"job_dir": "/data/job", "entry": "job.py:main", **given})  # type: ignore[arg-type]  # as given


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"params": {"deep": {"x": ["a pepper-4711-hunter2"]}}}, "params"),
        ({"params": {"pepper-4711-hunter2": 1}}, "params"),
        ({"conf": {"spark.x": "pepper-4711-hunter2"}}, "conf"),
        ({"job_dir": "/data/pepper-4711-hunter2"}, "job_dir"),
    ],
)
def test_a_secret_that_is_also_given_in_the_clear_is_refused(
    given: dict[str, object], option: str
) -> None:
    """The message names the option and the parameter, and never the value."""
    with pytest.raises(ConfigError, match=f"^{option}: .*'salt'") as raised:
        check_not_in_clear_text(_spec(**given), _VALUES)
    assert "hunter2" not in str(raised.value)


def test_a_request_with_a_secret_is_not_submitted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its texts are what the driver does, so they are refused and not replaced."""
    monkeypatch.setattr(redaction, "_known", Secrets.of(_VALUES))
    run = JobDirectory(LocalStorage(str(tmp_path))).run("r1")
    request = _spec(params={"x": ["a pepper-4711-hunter2"]}, driver_id="d1")
    with pytest.raises(ConfigError, match="secret parameter 'salt'") as raised:
        run.put_submission(request.inside(a_submission("d1")))

    assert "hunter2" not in str(raised.value)
    assert [] == run.submissions()


def test_a_weak_secret_may_be_a_word_of_an_option() -> None:
    """A value such as postgres says nothing of where it is from."""
    check_not_in_clear_text(_spec(params={"url": "postgresql://postgres@db/x"}), _VALUES)


def test_an_event_log_is_refused_for_a_run_with_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before Spark starts, with the fix; a run without secrets may have one."""
    monkeypatch.setenv("SALT", "pepper-4711-hunter2")
    monkeypatch.setattr(redaction, "_known", Secrets({}))
    conf = {"spark.eventLog.enabled": "true"}
    check_kept_secret(_spec(conf=conf))
    with pytest.raises(ConfigError, match="switch it off with --conf spark.eventLog.enabled=false"):
        check_kept_secret(_spec(conf=conf, secret_params={"salt": "SALT"}))
    check_event_log({"spark.eventLog.enabled": "false"})


def test_a_run_with_secrets_has_no_ui_unless_it_is_asked_for(tmp_path: object) -> None:
    """What the run or spark-defaults.conf says stays."""
    (tmp_path / "spark-defaults.conf").write_text("spark.ui.enabled true\n")  # type: ignore[operator]  # a Path
    asked, nothing = {"spark.ui.enabled": "true"}, {"SPARK_CONF_DIR": "/nowhere"}
    assert ({"spark.ui.enabled": "false"}, asked, {}) == (
        settings_without_ui({}, nothing),
        settings_without_ui(asked, nothing),
        settings_without_ui({}, {"SPARK_CONF_DIR": str(tmp_path)}),
    )


class _Operator:
    def __init__(self, key: str) -> None:
        self.keys = (key,)


class _Query:
    """What is looked at of a query."""

    def __init__(self, key: str, path: str, column: str) -> None:
        self.name, self.operators, self.all_sinks = "out", (), ()
        self.sources = (declared("rows", format="json", path=path),)
        schema = type("Schema", (), {"json": lambda _: f'{{"name":"{column}"}}'})()
        self.df = type("Frame", (), {"schema": schema})()
        self.fingerprint = type("Fingerprint", (), {"operators": (_Operator(key),)})()


@pytest.mark.parametrize(
    ("key", "path", "column", "found"),
    [
        ("'<parameter salt>'", "/in", "v", "groups by the value"),
        ("concat(v, cast('<parameter salt>' as string))", "/in", "v", "groups by the value"),
        ("v", "/in/pepper-4711-hunter2", "v", "the path of a source"),
        ("v", "/in", "concat(v, pepper-4711-hunter2)", "with alias"),
        ("sha2(cast(concat(v, '<parameter salt>') as binary), 256)", "/in", "h", None),
        ("keyed(v)", "/in", "h", None),
    ],
)
def test_names_paths_and_keys_with_a_secret_are_refused(
    monkeypatch: pytest.MonkeyPatch, key: str, path: str, column: str, found: str | None
) -> None:
    """What a run stores and shows as it is has no secret; a hash of one is none."""
    monkeypatch.setattr(redaction, "_known", Secrets.of(_VALUES))
    queries = [_Query(key, path, column)]
    try:
        check_names_and_locations(queries)  # type: ignore[arg-type]  # what is looked at
        said = None
    except ConfigError as error:
        said = str(error)
    assert (found is None, True) == (said is None, found is None or found in str(said))
    assert "hunter2" not in str(said)
