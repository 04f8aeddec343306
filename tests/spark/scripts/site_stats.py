"""Three outputs of one log of page views: the raw rows, the errors, and hits by minute."""

import json
import logging
import os
import signal
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from site_config import load_config

log = logging.getLogger(__name__)


def build(spark, config):
    views = (
        spark.readStream.schema("ts timestamp, path string, status int")
        .option("maxFilesPerTrigger", 1)
        .json(config["views"])
    )
    hits = (
        views.withWatermark("ts", "1 minute")
        .groupBy(F.window("ts", "1 minute").alias("w"), "path")
        .count()
        .select(F.col("w.start").alias("minute"), "path", "count")
    )
    return {
        "raw": (views.withColumn("day", F.to_date("ts")), "parquet", ["day"]),
        "errors": (views.where("status >= 500"), "csv", []),
        "hits": (hits, "orc", []),
    }


def start(name, df, file_format, columns, root):
    writer = (
        df.writeStream.queryName(name)
        .format(file_format)
        .option("checkpointLocation", f"{root}/checkpoints/{name}")
        .trigger(availableNow=True)
    )
    if columns:
        writer = writer.partitionBy(*columns)
    return writer.start(f"{root}/{name}")


def main():
    config = load_config(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    spark = SparkSession.builder.config(map={"spark.sql.session.timeZone": "UTC"}).getOrCreate()
    queries = [
        start(name, df, file_format, columns, config["root"])
        for name, (df, file_format, columns) in build(spark, config).items()
    ]
    log.info("%d queries", len(queries))
    for query in queries:
        query.awaitTermination()
    summary = {"queries": [query.name for query in queries], "files": {}}
    for query in queries:
        summary["files"][query.name] = sum(
            name.startswith("part-")
            for _, _, names in os.walk(f"{config['root']}/{query.name}")
            for name in names
        )
    with open(f"{config['root']}/summary.json", "w") as file:
        json.dump(summary, file)


if __name__ == "__main__":
    sys.exit(main())
