"""Extra links of the operators: from a task to the page of its stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

_PAGE: Final = "plugin/spark-stream"


class StreamLink(BaseOperatorLink):
    """To the overview of the task's stream."""

    name = "Stream"
    _tab = "overview"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """Return the address of a view, relative to Airflow's own.

        Airflow stores it before a deferred task's driver has begun, so it leads to a page that
        looks later.
        """
        instance: Any = ti_key  # a task instance, whose index may be None
        index = instance.map_index
        address = {
            "dag_id": instance.dag_id,
            "run_id": instance.run_id,
            "task_id": instance.task_id,
            "map_index": -1 if index is None else index,
            "tab": self._tab,
        }
        return f"{_PAGE}?{urlencode(address)}"


class SparkUILink(StreamLink):
    """To the attempts, each with its application and the address of Spark's own page."""

    name = "Spark UI"
    _tab = "runs"


class DriverLogLink(StreamLink):
    """To the end of the driver's log."""

    name = "Driver log"
    _tab = "log"


class SavepointLink(StreamLink):
    """To the savepoints."""

    name = "Savepoint"
    _tab = "savepoints"


SAVEPOINT_LINKS: Final = (StreamLink(), SavepointLink())
DRIVER_LINKS: Final = (StreamLink(), SparkUILink(), DriverLogLink(), SavepointLink())
