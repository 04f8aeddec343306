"""Names of extensions in the runtime's table: each leads somewhere, and a missing one says so."""

from __future__ import annotations

import sys

import pytest

from airflow_provider.runtime import known_extensions
from airflow_provider.runtime.api.sources import LossySource, Source, TimedSource, TypedSource
from airflow_provider.runtime.errors import ConfigError

TABLES = {
    name: table
    for name, table in vars(known_extensions).items()
    if isinstance(table, dict) and name.isupper()
}


@pytest.mark.parametrize(
    ("table", "name"), [(table, name) for table, names in TABLES.items() for name in names]
)
def test_each_name_leads_to_an_object(table, name):
    """
    The strings of the tables are checked by no type checker.
    """
    assert known_extensions.load(TABLES[table], name) is not None


@pytest.mark.parametrize("name", known_extensions.SOURCES)
def test_known_sources_implement_the_protocol(name):
    """
    Both formats of Kafka can end at a time and have columns of their own; losses of Spark's connector
    are Spark's.
    """
    source = known_extensions.load(known_extensions.SOURCES, name)

    assert isinstance(source, Source)
    assert isinstance(source, TimedSource)
    assert isinstance(source, TypedSource)
    assert isinstance(source, LossySource) is (name != "kafka")


def test_an_extension_that_is_not_installed_is_named(monkeypatch):
    """
    A package may be built without some of the folders.
    """
    for module in [
        each for each in sys.modules if each.startswith("airflow_provider.extensions.hdfs")
    ]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "airflow_provider.extensions.hdfs", None)

    with pytest.raises(
        ConfigError, match="'webhdfs' needs the extension 'hdfs', which is not inst"
    ):
        known_extensions.load(known_extensions.STORAGES, "webhdfs")
