"""Extensions: by entry point or by known name; a broken or missing one is named in the error."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider.runtime.api.commands import COMMANDS
from airflow_provider.runtime.api.sources import (
    BoundedSource,
    CountedSource,
    EndingSource,
    IdentifiedSource,
    LossySource,
    ObservedSource,
    OrderedSource,
    SameInBatch,
    SizedSource,
    Source,
    TimedSource,
    TypedSource,
)
from airflow_provider.runtime.base import extensions
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LAUNCHERS = "spark_stream.launchers"
BROKEN = {
    "one_that_raises": ("raise ValueError('no licence')", "ValueError: no licence"),
    "one_that_needs_more": ("import nothing_of_that_name", "ModuleNotFoundError"),
    "one_for_version_99": ("api_version = 99", "version 99 of the interface.*has version 1"),
    "one_without_a_version": ("", "version none of the interface"),
}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return what installs a package with one module, an entry point of a group."""

    def put(group: str, name: str, code: str) -> None:
        (tmp_path / f"{name}.py").write_text(code)
        metadata = tmp_path / f"{name}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {name}\n")
        forget_entry_points()

    def forget_entry_points() -> None:
        extensions._entry_points.cache_clear()
        extensions.load_extension.cache_clear()

    monkeypatch.syspath_prepend(tmp_path)
    yield put
    for name in BROKEN:
        sys.modules.pop(name, None)
    monkeypatch.undo()
    forget_entry_points()


@pytest.mark.parametrize("name", BROKEN)
def test_an_extension_that_cannot_be_used_is_named(name, install):
    """Importing another one's package may raise anything."""
    code, message = BROKEN[name]
    install(LAUNCHERS, name, code)

    with pytest.raises(ConfigError, match=f"(?s)spark_stream.launchers: '{name}' .*{message}"):
        extensions.load_extension(LAUNCHERS, name)


@pytest.mark.airflow
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_launcher_does_not_fail_tasks_of_another_one(name, install, monkeypatch):
    """The type of a connection is compared with those of all launchers."""
    from airflow.sdk import Connection  # late: it takes seconds

    from airflow_provider.hooks import launchers

    warnings: list[str] = []  # importing Airflow sets up logging anew, without pytest's handler
    monkeypatch.setattr(launchers.log, "warning", lambda text, *of: warnings.append(text % of))
    install(LAUNCHERS, name, BROKEN[name][0])

    launchers.refuse_other(Connection(conn_id="spark", conn_type="http"), "conn_id 'spark'")
    with pytest.raises(ConfigError, match="give launcher='livy' for it"):
        launchers.refuse_other(Connection(conn_id="spark", conn_type="livy"), "conn_id 'spark'")

    assert name in str(warnings)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_command_does_not_take_the_others_away(name, install, capsys, caplog):
    """The list of commands has those that can be imported."""
    install(COMMANDS, name, BROKEN[name][0])

    with pytest.raises(SystemExit) as exits:
        main(["--help"])

    assert exits.value.code == 0
    assert "upgrade" in capsys.readouterr().out
    assert name in caplog.text


TABLES = {
    name: table
    for name, table in vars(extensions).items()
    if isinstance(table, dict) and name.isupper()
}


@pytest.mark.parametrize(
    ("table", "name"), [(table, name) for table, names in TABLES.items() for name in names]
)
def test_each_name_leads_to_an_object(table, name):
    """The strings of the tables are checked by no type checker."""
    assert extensions.load_known(TABLES[table], name) is not None


CAPABILITIES = {
    "delta": (EndingSource, OrderedSource, ObservedSource),
    "kafka": (
        *(EndingSource, TimedSource, TypedSource, SizedSource, BoundedSource, ObservedSource),
        IdentifiedSource,
    ),
    "spark-stream-kafka": (
        *(EndingSource, TimedSource, TypedSource, SizedSource, BoundedSource, ObservedSource),
        IdentifiedSource,
        LossySource,  # losses of Spark's connector are Spark's
    ),
}


@pytest.mark.parametrize("name", extensions.SOURCES)
def test_known_sources_implement_the_protocol(name):
    """Each has the capabilities that its page promises, and no other one."""
    source: object = extensions.load_known(extensions.SOURCES, name)(name)
    every: set[Any] = {
        *(EndingSource, OrderedSource, TimedSource, SizedSource, BoundedSource),
        *(ObservedSource, LossySource, TypedSource, CountedSource, SameInBatch, IdentifiedSource),
    }

    assert isinstance(source, Source)
    assert {*CAPABILITIES[name]} == {each for each in every if isinstance(source, each)}


def test_an_extension_that_is_not_installed_is_named(monkeypatch):
    """A package may be built without some of the folders."""
    for module in [
        each for each in sys.modules if each.startswith("airflow_provider.extensions.hdfs")
    ]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "airflow_provider.extensions.hdfs", None)

    with pytest.raises(
        ConfigError, match="'webhdfs' needs the extension 'hdfs', which is not inst"
    ):
        extensions.load_known(extensions.STORAGES, "webhdfs")
