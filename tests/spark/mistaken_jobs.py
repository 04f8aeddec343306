"""Jobs with the mistakes that people make first; tests/spark/mistakes.txt has what is said of each."""

from __future__ import annotations

import gzip
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from airflow_provider.runtime import JobContext, files, for_each_batch

SCHEMA = "ts timestamp, user string, v int"


def clicks(ctx: JobContext, **more: object) -> DataFrame:
    """Read the input as a newcomer does."""
    asked: dict[str, object] = {
        "format": "csv",
        "path": ctx.params["input"],
        "schema": SCHEMA,
        "bounded": True,
    }
    asked.update(more)
    return ctx.read("clicks", **asked)  # type: ignore[arg-type]  # mistakes, too  # here


def out(ctx: JobContext, df: DataFrame, name: str = "counts") -> None:
    ctx.write(name, df, to=files(ctx.params["output"]))  # here


def right(ctx: JobContext) -> None:
    out(ctx, clicks(ctx))


def wrong_column(ctx: JobContext) -> None:
    df = clicks(ctx)
    out(ctx, df.where("v > 1").groupBy("usr").count())  # here


def wrong_column_in_sql(ctx: JobContext) -> None:
    clicks(ctx).createOrReplaceTempView("clicks")
    out(ctx, ctx.spark.sql("SELECT usr, v FROM clicks"))  # here


def wrong_sql(ctx: JobContext) -> None:
    clicks(ctx).createOrReplaceTempView("clicks")
    out(ctx, ctx.spark.sql("SELEC user FROM clicks"))  # here


def wrong_table_in_sql(ctx: JobContext) -> None:
    clicks(ctx).createOrReplaceTempView("clicks")
    out(ctx, ctx.spark.sql("SELECT user FROM click"))  # here


def wrong_function_in_sql(ctx: JobContext) -> None:
    out(ctx, clicks(ctx).selectExpr("uper(user)"))  # here


def wrong_attribute(ctx: JobContext) -> None:
    df = clicks(ctx)
    out(ctx, df.where(df.usr == "a"))  # here


def wrong_types(ctx: JobContext) -> None:
    out(ctx, clicks(ctx).select(F.col("v") + F.array(F.col("v"))))  # here


def wrong_format(ctx: JobContext) -> None:
    out(ctx, clicks(ctx, format="cvs"))


def no_schema(ctx: JobContext) -> None:
    out(ctx, clicks(ctx, schema=None))


def bad_schema(ctx: JobContext) -> None:
    out(ctx, clicks(ctx, schema="ts timestamp, user strin"))


def missing_input(ctx: JobContext) -> None:
    out(ctx, clicks(ctx, path=ctx.params["input"] + "s"))


def wrong_watermark_column(ctx: JobContext) -> None:
    out(ctx, clicks(ctx, watermark=("time", "10 minutes")))


def watermark_on_text(ctx: JobContext) -> None:
    out(ctx, clicks(ctx, watermark=("user", "10 minutes")))


def bad_watermark_delay(ctx: JobContext) -> None:
    out(ctx, clicks(ctx, watermark=("ts", "ten minutes")))


def no_watermark(ctx: JobContext) -> None:
    out(ctx, clicks(ctx).groupBy("user").count())


def sorted_stream(ctx: JobContext) -> None:
    out(ctx, clicks(ctx).orderBy("ts"))


def two_limits(ctx: JobContext) -> None:
    limits = {"maxFilesPerTrigger": 1, "maxBytesPerTrigger": 10_000}
    out(ctx, clicks(ctx, options=limits, bounded=False))


def pandas_mean_of_a_stream(ctx: JobContext) -> None:
    from airflow_provider.runtime import spark_sink

    @F.pandas_udf("double")  # type: ignore[attr-defined, untyped-decorator]  # PySpark has none of it
    def mean(values: pd.Series) -> float:
        return float(values.mean())

    means = clicks(ctx, bounded=False).groupBy("user").agg(mean("v").alias("mean"))
    ctx.write("means", means, to=spark_sink("noop"), output_mode="update")  # here


def to_kafka_without_jar(ctx: JobContext) -> None:
    from airflow_provider.runtime import spark_sink

    sink = spark_sink("kafka", {"topic": "t"})
    ctx.write("counts", clicks(ctx).selectExpr("user AS value"), to=sink)  # here


def counted(ctx: JobContext) -> None:
    df = clicks(ctx)
    if df.count() > 0:  # here
        out(ctx, df)


def table_written(ctx: JobContext) -> None:
    out(ctx, ctx.spark.createDataFrame([(1,)], "v int"))


def nothing_written(ctx: JobContext) -> None:  # here
    clicks(ctx)


def one_name_twice(ctx: JobContext) -> None:
    df = clicks(ctx)
    out(ctx, df)
    ctx.write("counts", df, to=files(ctx.params["output"] + "2"))  # here


def names_by_case(ctx: JobContext) -> None:
    df = clicks(ctx)
    out(ctx, df)
    ctx.write("Counts", df, to=files(ctx.params["output"] + "2"))  # here


def below_its_input(ctx: JobContext) -> None:
    ctx.write("counts", clicks(ctx), to=files(ctx.params["input"] + "/out"))  # here


def one_folder_twice(ctx: JobContext) -> None:
    df = clicks(ctx)
    out(ctx, df)
    ctx.write("again", df, to=files(f"file://{ctx.params['output']}/", "json"))  # here


def in_the_job_directory(ctx: JobContext) -> None:
    job_dir = ctx.params["input"].replace("/input", "/job")
    ctx.write("counts", clicks(ctx), to=files(f"{job_dir}/out"))  # here


def path_as_sink(ctx: JobContext) -> None:
    ctx.write("counts", clicks(ctx), to=ctx.params["output"])  # here


def bad_output_mode(ctx: JobContext) -> None:
    to = files(ctx.params["output"])
    ctx.write("counts", clicks(ctx), to=to, output_mode="overwrite")  # here


def update_to_files(ctx: JobContext) -> None:
    df = clicks(ctx, watermark=("ts", "1 minute")).groupBy(F.window("ts", "1 minute")).count()
    ctx.write("counts", df, to=files(ctx.params["output"]), output_mode="update")  # here


def bad_sink_format(ctx: JobContext) -> None:
    ctx.write("counts", clicks(ctx), to=files(ctx.params["output"], format="paquet"))  # here


def param_with_default(ctx: JobContext) -> None:
    ctx.params.get("threshold", "1")
    out(ctx, clicks(ctx))


def missing_param(ctx: JobContext) -> None:
    out(ctx, clicks(ctx, path=ctx.params["folder"]))  # here


def no_argument() -> None:  # here
    """Forgets the context."""


def two_arguments(ctx: JobContext, folder: str) -> None:  # here
    """Wants more than it gets."""


def divides(ctx: JobContext) -> None:
    per_day = int(ctx.params.get("days", "0"))
    out(ctx, clicks(ctx).limit(7 // per_day))  # here


def udf_raises(ctx: JobContext) -> None:
    @F.udf("int")
    def price(user):
        return {"a": 1}[user]  # here

    out(ctx, clicks(ctx).select(price("user").alias("price")))


def udf_not_shipped(ctx: JobContext) -> None:
    @F.udf("int")
    def rate(v):
        import prices_of_the_shop  # type: ignore[import-not-found]  # here

        return prices_of_the_shop.rate(v)

    out(ctx, clicks(ctx).select(rate("v").alias("rate")))  # here


def udf_takes_the_session(ctx: JobContext) -> None:
    @F.udf("int")
    def rate(v):
        return ctx.spark.range(v).count()

    out(ctx, clicks(ctx).select(rate("v").alias("rate")))  # here


def starts_by_itself(ctx: JobContext) -> None:
    clicks(ctx).writeStream.format("console").start().awaitTermination()  # here


def into_a_table(ctx: JobContext) -> None:
    clicks(ctx).writeStream.toTable("clicks")  # here


def stops_spark(ctx: JobContext) -> None:
    out(ctx, clicks(ctx))
    ctx.spark.stop()  # here


def delay_alone(ctx: JobContext) -> None:
    out(ctx, clicks(ctx, watermark="10 minutes"))


def output_of_none(ctx: JobContext) -> None:
    ctx.write("counts", clicks(ctx), to=files(ctx.params.get("outptu")))  # here


def failfast(ctx: JobContext) -> None:
    out(ctx, clicks(ctx, options={"mode": "FAILFAST"}))


def unknown_option(ctx: JobContext) -> None:
    out(ctx, clicks(ctx, options={"maxFilesPerTriger": "1"}))


def pandas_too_few(ctx: JobContext) -> None:
    @F.pandas_udf("int")  # type: ignore[attr-defined, untyped-decorator]  # here
    def first(v: pd.Series) -> pd.Series:
        return v[:1]

    out(ctx, clicks(ctx).select(first("v").alias("v")))


def udf_of_another_type(ctx: JobContext) -> None:
    @F.pandas_udf("int")  # type: ignore[attr-defined, untyped-decorator]  # here
    def number(user: pd.Series) -> pd.Series:
        return user + "!"

    out(ctx, clicks(ctx).select(number("user").alias("number")))


def batch_not_read(ctx: JobContext) -> None:
    def show(df: DataFrame, epoch: int) -> None:  # here
        del df, epoch

    counts = clicks(ctx, watermark=("ts", "1 minute")).groupBy(F.window("ts", "1 minute")).count()
    ctx.write("counts", counts, to=for_each_batch(show))


def view_of_a_batch(ctx: JobContext) -> None:
    def show(df: DataFrame, epoch: int) -> None:
        df.createOrReplaceTempView("batch")
        ctx.spark.sql("SELECT * FROM batch").count()  # here

    ctx.write("counts", clicks(ctx), to=for_each_batch(show))


def other_input(ctx: JobContext, name: str, data: bytes) -> DataFrame:
    """Read a folder of its own, with one file."""
    folder = Path(ctx.params["input"]).with_name("other")
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    return clicks(ctx, path=str(folder))


def colon_in_a_name(ctx: JobContext) -> None:
    out(ctx, other_input(ctx, "10:00.csv", b"2026-01-01 00:00:00,a,1\n"))


def file_cut_off(ctx: JobContext) -> None:
    lines = b"".join(b"2026-01-01 00:00:00,a,%d\n" % number for number in range(1000))
    out(ctx, other_input(ctx, "a.csv.gz", gzip.compress(lines)[:1000]))


def parquet(ctx: JobContext) -> None:
    out(ctx, clicks(ctx, format="parquet"))


def cast(ctx: JobContext) -> None:
    out(ctx, clicks(ctx).selectExpr("cast(user as int) as n"))


def kafka_without_jar(ctx: JobContext) -> None:
    df = ctx.read("clicks", format="kafka", options={"subscribe": "x"}, bounded=True)
    out(ctx, df)


def to_sql(ctx: JobContext) -> None:
    from airflow_provider.extensions.postgres import postgres

    ctx.write("counts", clicks(ctx), to=postgres(ctx.params["dsn"], "counts"))  # here


def kafka_away(ctx: JobContext) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "clicks"}
    out(ctx, ctx.read("clicks", format="spark-stream-kafka", options=options, bounded=True))  # here
