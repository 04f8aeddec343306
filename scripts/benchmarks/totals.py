"""The job whose state is measured: count and sum per account, kept for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider.runtime import JobContext

SCHEMA = "account string, amount long"


def totals(ctx: JobContext) -> None:
    """Keep the totals of all accounts; what comes of it is not written anywhere."""
    from airflow_provider.runtime import spark_sink

    sales = ctx.read("sales", format="parquet", path=ctx.params["input"], schema=SCHEMA)
    ctx.write("totals", total(sales), to=spark_sink("noop"), output_mode="update")


def total(sales: DataFrame) -> DataFrame:
    """Return count and sum per account."""
    return sales.groupBy("account").agg(F.count("*").alias("count"), F.sum("amount").alias("sum"))
