"""The tab "State": operators and tables with their sizes, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.state_tools.contents import describe_state
from airflow_provider.extensions.state_tools.open_state import open_state
from airflow_provider.hooks.api import Bytes, Moment, Section, Table
from airflow_provider.runtime.checkpoint.operator_kinds import kind_named, operator_title
from airflow_provider.runtime.errors import SparkStreamError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_COLUMNS: Final = ("Table", "Rows are", "Keys", "Values", "Expires")
_INPUTS: Final = {
    "running": "still open",
    "partly_finished": "some sources have ended",
    "finished": "ended",
}
_HINT: Final = (
    "The savepoints show how it grows from savepoint to savepoint. "
    "spark-stream state query reads its rows."
)


class StateView:
    """The tab."""

    api_version = 1
    title = "State"

    def concerns(self, job_dir: str) -> bool:
        return True

    def read(self, job_dir: str) -> Sequence[Section]:
        try:
            queries = describe_state(open_state(job_dir))["queries"]
        except SparkStreamError as error:
            return [Section(text=str(error))]
        shown = [section for name, query in queries.items() for section in _query(name, query)]
        return [*shown, Section(text=_HINT)]


STATE: Final = StateView()


def _query(name: str, query: dict[str, Any]) -> Iterator[Section]:
    yield Section(
        title=name,
        detail=f"after batch {query['batch']}",
        text=None if query["operators"] else "This query keeps no state.",
        facts={"Watermark": Moment(query["watermark"])},
    )
    for operator in query["operators"]:
        title = operator_title(operator["name"], operator["id"], operator["kind"])
        does = kind_named(operator["kind"]).does
        yield Section(
            title=title,
            is_nested=True,
            facts={
                "Operator": None if title.startswith(does) else does,
                "Size": Bytes(operator["bytes"]),
                "Partitions": operator["partitions"],
                "Store": operator["provider"],
                "Input": _INPUTS.get(operator["finish_state"]),
            },
            table=Table(_COLUMNS, [_row(table) for table in operator["tables"]]),
        )


def _row(table: dict[str, Any]) -> tuple[str, ...]:
    keys, values = (
        "\n".join(f"{c['name']} {c['type']}" for c in table["columns"] if c["is_key"] is is_key)
        for is_key in (True, False)
    )
    how = [("after its TTL", "has_ttl"), ("with the watermark", "has_watermark")]
    expires = next((said for said, has in how if table[has]), "no")
    return table["name"], table["rows_are"], keys, values, expires
