"""Jobs whose nights go wrong: a stream into several sinks, and one with a secret parameter."""

import base64
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from airflow_provider.extensions.delta import delta
from airflow_provider.extensions.postgres import postgres
from airflow_provider.runtime import JobContext, files, spark_sink

# Of each location, for each name that *sinks* may have.
SINKS: dict[str, Callable[[str], Any]] = {
    "files": files,
    "delta": delta,
    "postgres": lambda url: postgres(url, "nights"),
}


def copy(ctx: JobContext) -> None:
    """Copy each row into each sink, a query for each; a row of 100 and s takes s seconds."""

    @F.udf("long")
    def slowly(value: int) -> int:
        time.sleep(max(0, value - 100))
        return value

    for kind, location in sorted(ctx.params["sinks"].items()):
        rows = ctx.read(
            f"for_{kind}",
            format="csv",
            path=ctx.params["input"],
            schema="value long",
            options={"maxFilesPerTrigger": "1"},
        )
        ctx.write(
            f"to_{kind}", rows.select(slowly("value").alias("value")), to=SINKS[kind](location)
        )


def salted(ctx: JobContext) -> None:
    """Use a secret as a literal, a filter, a key, in a function, as bytes, and as an option."""
    salt, pin, uses = ctx.params["salt"], int(ctx.params["pin"]), ctx.params["uses"]
    print("the salt is", salt)

    @F.udf("string")
    def keyed(value: str) -> str:
        if uses == "task":
            raise ValueError(f"{value}: cannot log in with {salt!r} at postgresql://me:{salt}@db/x")
        return str(len(value + salt))

    rows = ctx.read(
        "rows",
        format="csv",
        path=ctx.params["input"],
        schema="v string, t timestamp",
        options={"password": salt},
        bounded=True,
        watermark=("t", "1 minute"),
    )
    if uses == "column":
        rows = rows.select(f"`no_{salt}`")
    coded = base64.b64encode(f"user:{salt}".encode()).decode()
    hashed = (
        rows.filter((F.col("v") != F.lit(salt)) & (F.length("v") != pin))
        .filter(~F.col("v").contains(coded) & (F.base64("v") != coded))
        .withColumn("h", F.sha2(F.concat("v", F.lit(salt)), 256))
        .withColumn("b", F.sha2(F.lit(salt.encode()), 256))
        .withColumn("k", keyed("v"))
    )
    counts = hashed.groupBy(F.window("t", "1 minute"), "h", "b", "k").count()
    location = f"{ctx.params['output']}/{salt}" if uses == "path" else None
    ctx.write("out", counts, to=files(location or ctx.params["output"], format="json"))
    ctx.write("to_spark", hashed, to=spark_sink("noop", {"password": salt}))
