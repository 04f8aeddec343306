"""Names of Airflow that only tests need, from where the version at hand has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.airflow_versions import find_name

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.sdk.exceptions import AirflowSensorTimeout, TaskDeferred
    from airflow.sdk.log import redact
    from airflow.sdk.module_loading import import_string
    from airflow.serialization.serialized_objects import DagSerialization

__all__ = [
    "AirflowSensorTimeout",
    "DagBag",
    "DagSerialization",
    "TaskDeferred",
    "import_string",
    "redact",
]

_EXCEPTIONS = ("airflow.sdk.exceptions", "airflow.exceptions")
_LOCATIONS = {
    "AirflowSensorTimeout": _EXCEPTIONS,
    "DagBag": ("airflow.dag_processing.dagbag", "airflow.models.dagbag"),
    "TaskDeferred": _EXCEPTIONS,
    "import_string": ("airflow.sdk.module_loading", "airflow.utils.module_loading"),
    "redact": ("airflow.sdk.log", "airflow.sdk.execution_time.secrets_masker"),
}
_SERIALIZATION = "airflow.serialization.serialized_objects"

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name == "DagSerialization":
            try:
                return find_name(name, [_SERIALIZATION])
            except AttributeError:
                return find_name("SerializedDAG", [_SERIALIZATION])
        if name not in _LOCATIONS:
            raise AttributeError(name)
        return find_name(name, _LOCATIONS[name])
