"""Jobs whose sources may show one driver more than another."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from airflow_provider.runtime import JobContext, files


def copy_files(ctx: JobContext) -> None:
    """Copy lines of files."""
    rows = ctx.read("rows", format="csv", path=ctx.params["input"], schema="v string")
    ctx.write("out", rows, to=files(ctx.params["output"], format="json"))


class NumberReader(DataSourceStreamReader):
    """Numbers up to the one that a file names; a replica may know fewer of them."""

    def __init__(self, path: str) -> None:
        self.path = path

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - PySpark's name
        return {"n": 0}

    def latestOffset(self, *_) -> dict[str, int]:  # noqa: N802 - the same
        return {"n": int(Path(self.path).read_text())}

    def partitions(self, start, end):
        return [InputPartition((start["n"], end["n"]))]

    def read(self, partition):
        for number in range(*partition.value):
            yield (f"r{number:02d}",)


class Numbers(DataSource):
    """The source."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "v string"

    def streamReader(self, schema):  # noqa: N802 - PySpark's name
        del schema
        return NumberReader(self.options["path"])


def copy_numbers(ctx: JobContext) -> None:
    """Copy numbers."""
    ctx.spark.dataSource.register(Numbers)
    rows = ctx.read("rows", format="numbers", options={"path": ctx.params["input"]})
    ctx.write("out", rows, to=files(ctx.params["output"], format="json"))
