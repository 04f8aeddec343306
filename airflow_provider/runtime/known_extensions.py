"""Extensions that the runtime finds by a name in a job, an address or a request.

Entry points do not exist where the runtime travels as a zip, so these names are a table of import
strings, as the known implementations of fsspec are. A module is imported when its name is used.
Commands and launchers, which only a machine with an installed package needs, are entry points
(``pyproject.toml``).
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from airflow_provider.runtime.errors import ConfigError

_HOME: Final = "airflow_provider.extensions"
STORAGES: Final = {"webhdfs": f"{_HOME}.hdfs.storage:open_hdfs"}
"""By scheme of an address: what opens the storage."""
FILE_SINKS: Final = {"objects": f"{_HOME}.bucket_files.sink:BucketFilesSink"}
"""The sink of ``files(…)`` at an address of an object store."""
WRITER_SINKS: Final = {"delta": f"{_HOME}.delta:delta"}
"""By format of a plain script's writer: the sink that takes its place."""
PROGRAMS: Final = {
    "check": f"{_HOME}.scripts.program:check_program",
    "load": f"{_HOME}.scripts.program:load_program",
}
"""What checks and what loads a job that is a plain script or a file of SQL."""
REQUESTS: Final = {"upgrade": f"{_HOME}.upgrades.upgrade_command:drive_upgrade"}
"""By the command of a submission: what carries out a request that is not a run."""
WATCHERS: Final = {"upgrade": f"{_HOME}.upgrades.upgrade_request:open_upgrade_watcher"}
"""By the command of a submission: what makes the watcher of such a request."""
WARM_DRIVERS: Final = {
    "submission": f"{_HOME}.warm_drivers.pool:take_submission",
    "run": f"{_HOME}.warm_drivers.standby_client:run_by_standby",
}
"""What gives a submitted run, or the run of a command, to a warm driver."""
SOURCES: Final = {
    "kafka": f"{_HOME}.kafka.formats:SPARKS_KAFKA",
    "spark-stream-kafka": f"{_HOME}.kafka.formats:PYTHON_KAFKA",
}
"""By format, in small letters: what is known of a source (:mod:`~.api.sources`)."""


def load(known: dict[str, str], name: str) -> Any:
    """Return the object of a name.

    Args:
        known: one of the tables of this module.
        name: a key of it.

    Raises:
        ConfigError: the extension is not part of this installation.
    """
    module, _, attribute = known[name].partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        msg = f"{name!r} needs the extension {module.split('.')[2]!r}, which is not installed here"
        raise ConfigError(msg) from error
