"""Everything optional: extensions by entry point or by known name, and extras of the package."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api import VERSION
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_HOME: Final = "airflow_provider.extensions"
STORAGES: Final = {"webhdfs": f"{_HOME}.hdfs.storage:WEBHDFS"}
"""By scheme of an address: the storage's kind. Those of other packages are entry points."""
FILE_SINKS: Final = {"objects": f"{_HOME}.bucket_files.sink:BucketFilesSink"}
"""The sink of ``files(…)`` at an address of an object store."""
WRITER_SINKS: Final = {"delta": f"{_HOME}.delta:delta"}
"""By format of a plain script's writer: the sink that takes its place."""
PROGRAMS: Final = {
    "check": f"{_HOME}.scripts.script_job:check_program",
    "load": f"{_HOME}.scripts.script_job:load_program",
}
"""What checks and what loads a job that is a plain script or a file of SQL."""
REQUESTS: Final = {"upgrade": f"{_HOME}.upgrades.upgrade_command:drive_upgrade"}
"""By the command of a submission: what carries out a request that is not a run."""
WATCHERS: Final = {"upgrade": f"{_HOME}.upgrades.upgrade_request:UpgradeWatcher"}
"""By the command of a submission: what makes the watcher of such a request."""
FINGERPRINTS: Final = {"plan": f"{_HOME}.upgrades.canonical_plan:fingerprint_of"}
"""What reads from Spark's plan of a query all that its results depend on, given its state."""
WARM_DRIVERS: Final = {
    "submission": f"{_HOME}.warm_drivers.client:submit_to_pool",
    "run": f"{_HOME}.warm_drivers.client:run_in_pool",
}
"""What gives a submitted run, or the run of a command, to a warm driver."""
STATE_ACTIONS: Final = {"rewrite": f"{_HOME}.state_rewrite.rewrite_command:add_actions"}
"""What adds an action to the commands ``spark-stream state``."""
ROW_CHECKS: Final = {
    "rule": f"{_HOME}.row_checks.rules:rule_of",
    "rows": f"{_HOME}.row_checks.rules:with_rule",
    "records": f"{_HOME}.row_checks.records:records_of",
}
"""What makes rules, what applies them to rows, and what tells records that cannot be read."""
SOURCES: Final = {
    "delta": f"{_HOME}.delta.connector:DeltaConnector",
    "kafka": f"{_HOME}.kafka.formats:SparksKafka",
    "spark-stream-kafka": f"{_HOME}.kafka.formats:PythonKafka",
}
"""By format, in small letters: the source that ``ctx.read(format=…)`` stands for."""
DATASETS: Final = {"kafka": f"{_HOME}.kafka.topics:datasets_of"}
"""By format of Spark's own sink: what names its datasets."""
CONNECTORS: Final = {"kafka": f"{_HOME}.kafka.connector:missing_connector"}
"""By format of Spark's own sink: what says which package a Spark without it needs."""


def load_known(known: dict[str, str], name: str) -> Any:
    """Return the object that a name in one of the tables stands for, or raise ConfigError."""
    module, _, attribute = known[name].partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise ConfigError(
            f"{name!r} needs the extension {module.split('.')[2]!r}, which is not installed here"
        ) from error


@functools.cache
def _entry_points(group: str) -> dict[str, EntryPoint]:
    import importlib.metadata

    return {each.name: each for each in importlib.metadata.entry_points(group=group)}


def names_in(group: str) -> tuple[str, ...]:
    """Return the names of a group's entry points, in order; nothing is imported."""
    return tuple(sorted(_entry_points(group)))


@functools.cache
def load_extension(group: str, name: str) -> Any:
    """Return the object of an entry point."""
    entry_point = _entry_points(group)[name]
    named = f"{group}: {name!r} ({entry_point.value})"
    try:
        extension = entry_point.load()
    except Exception as error:  # the package is not ours: importing it may raise anything
        raise ConfigError(f"{named} cannot be imported: {type(error).__name__}: {error}") from error
    check_api_version(extension, named)
    return extension


def check_api_version(extension: Any, named: str) -> None:
    """Refuse an extension that was written for another version of the published interface."""
    written_for = getattr(extension, "api_version", "none")
    if written_for != VERSION:
        raise ConfigError(
            f"{named} was written for version {written_for} of the interface, and this package "
            f"has version {VERSION}; install a version that fits"
        )


def require_extra(what: str, extra: str, *modules: str, on_executors: bool = False) -> None:
    """Raise a ConfigError with the *extra* to install if one of *modules* cannot be imported."""
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError as error:
        where = ", on Spark's executors too" if on_executors else ""
        raise ConfigError(
            f"{what} needs the extra {extra!r}: "
            f"pip install 'airflow-provider-spark-streaming[{extra}]'{where}"
        ) from error
