"""Join of impressions and clicks; an ad without a click is a row as well."""

import argparse
import time

from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

IMPRESSIONS = "ad string, shown timestamp"
CLICKS = "clicked_ad string, clicked timestamp"


def read(spark, folder, schema, column):
    stream = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(folder)
    return stream.withWatermark(column, "10 minutes")


def join(spark, args):
    shown = read(spark, args.impressions, IMPRESSIONS, "shown")
    clicked = read(spark, args.clicks, CLICKS, "clicked")
    return shown.join(
        clicked,
        expr("clicked_ad = ad and clicked between shown and shown + interval 10 minutes"),
        "leftOuter",
    ).select("ad", expr("clicked is not null").alias("was_clicked"))


def watch(query):
    while query.isActive:
        progress = query.lastProgress
        if progress:
            print("rows:", progress["numInputRows"])
        time.sleep(0.2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("impressions", "clicks", "output", "checkpoint"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    spark = SparkSession.builder.getOrCreate()
    stream = join(spark, arguments)
    query = stream.writeStream.trigger(availableNow=True).start(
        path=arguments.output,
        format="json",
        outputMode="append",
        queryName="matches",
        checkpointLocation=arguments.checkpoint,
    )
    watch(query)
