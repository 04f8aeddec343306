"""Jobs that use secret parameters in each way that a text could show."""

from __future__ import annotations

import base64

from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from airflow_provider.runtime import JobContext, files, spark_sink

SCHEMA = "v string, t timestamp"


def salted(ctx: JobContext) -> None:
    """Use a secret as a literal, a filter, a key, in a function, as bytes, number and option."""
    salt, pin = ctx.params["salt"], int(ctx.params["pin"])
    print("the salt is", salt)

    @F.udf("string")
    def keyed(value: str) -> str:
        return str(len(value + salt))

    rows = ctx.read(
        "rows",
        format="csv",
        path=ctx.params["input"],
        schema=SCHEMA,
        options={"password": salt},
        bounded=True,
        watermark=("t", "1 minute"),
    )
    coded = base64.b64encode(f"user:{salt}".encode()).decode()
    hashed = (
        rows.filter((F.col("v") != F.lit(salt)) & (F.length("v") != pin))
        .filter(~F.col("v").contains(coded) & (F.base64("v") != coded))
        .withColumn("h", F.sha2(F.concat("v", F.lit(salt)), 256))
        .withColumn("b", F.sha2(F.lit(salt.encode()), 256))
        .withColumn("k", keyed("v"))
    )
    counts = hashed.groupBy(F.window("t", "1 minute"), "h", "b", "k").count()
    ctx.write("out", counts, to=files(ctx.params["output"], format="json"))
    ctx.write("to_spark", hashed, to=spark_sink("noop", {"password": salt}))


def failing(ctx: JobContext) -> None:
    """Raise an error with the secret in a task of Spark's."""
    salt = ctx.params["salt"]

    @F.udf("string")
    def refused(value: str) -> str:
        raise ValueError(f"{value}: cannot log in with {salt!r} at postgresql://me:{salt}@db/x")

    rows = ctx.read("rows", format="csv", path=ctx.params["input"], schema=SCHEMA, bounded=True)
    ctx.write("out", rows.select(refused("v").alias("r")), to=files(ctx.params["output"]))


def mistaken(ctx: JobContext) -> None:
    """Select a column that is not there, whose name has the secret."""
    rows = ctx.read("rows", format="csv", path=ctx.params["input"], schema=SCHEMA, bounded=True)
    chosen = rows.select(f"`no_{ctx.params['salt']}`")
    ctx.write("out", chosen, to=files(ctx.params["output"]))


def unnamed(ctx: JobContext) -> None:
    """Write a column that Spark names after a literal."""
    rows = ctx.read("rows", format="csv", path=ctx.params["input"], schema=SCHEMA, bounded=True)
    chosen = rows.select(F.concat("v", F.lit(ctx.params["salt"])))
    ctx.write("out", chosen, to=files(ctx.params["output"]))


def placed(ctx: JobContext) -> None:
    """Write into a folder that is named after the secret."""
    rows = ctx.read("rows", format="csv", path=ctx.params["input"], schema=SCHEMA, bounded=True)
    ctx.write("out", rows, to=files(f"{ctx.params['output']}/{ctx.params['salt']}"))


def keyed_by_secret(ctx: JobContext) -> None:
    """Keep the secret as a key of the state."""
    rows = ctx.read("rows", format="csv", path=ctx.params["input"], schema=SCHEMA, bounded=True)
    keys = rows.select(F.concat("v", F.lit(ctx.params["salt"])).alias("k")).dropDuplicates(["k"])
    ctx.write("out", keys.select(F.length("k").alias("n")), to=files(ctx.params["output"]))
