"""A job over a source whose name can be given to another thing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from airflow_provider.runtime import files
from airflow_provider.runtime.api.sources import SOURCE_OPTION, Location


@dataclasses.dataclass(frozen=True)
class IdentifiedNumbers:
    """The numbers of a file, a line each; the file beside it has the identity of the first one.

    Attributes:
        file: the numbers.
        accepts: whether a query may continue in another file of the same name.
    """

    file: str
    accepts: bool = False
    kind: str = "identified-numbers"

    def load(self, spark: Any, name: str, *, streaming: bool) -> Any:
        import number_source  # late: before Spark 4.2 there is none like it
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(number_source)  # workers do not find the module
        spark.dataSource.register(number_source.Numbers)
        reader = (spark.readStream if streaming else spark.read).option(SOURCE_OPTION, name)
        return reader.format("numbers-of-a-file").option("file", self.file).load()

    def location(self) -> Location:
        return Location(self.file)

    def identities(self, name: str) -> dict[str, str]:
        return {"numbers": Path(f"{self.file}.id").read_text(encoding="utf-8")}

    def why_not_continue(self, name: str, before: str, now: str) -> str | None:
        return None if self.accepts else f"{name} was {before}, and is {now}"


def copy(ctx: Any) -> None:
    """Copy the numbers."""
    source = IdentifiedNumbers(ctx.params["input"], ctx.params.get("accepts") == "yes")
    ctx.write(
        "out",
        ctx.read("numbers", source, bounded=True).select("id"),
        to=files(ctx.params["output"]),
    )
