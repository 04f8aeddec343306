"""Hourly departure delays: CSV files to Parquet, run by cron."""

import argparse
import logging

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, StringType, StructField, StructType, TimestampType

logger = logging.getLogger("hourly_delays")

SCHEMA = StructType(
    [
        StructField("ts", TimestampType()),
        StructField("origin", StringType()),
        StructField("delay", DoubleType()),
    ]
)


@F.udf("string")
def airport(code):
    return code.strip().upper()


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--max-files", type=int, default=1)
    return parser.parse_args()


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO)
    spark = (
        SparkSession.builder.appName("hourly-delays")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.executor.memory", "3g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    flights = (
        spark.readStream.format("csv")
        .schema(SCHEMA)
        .option("header", True)
        .option("maxFilesPerTrigger", args.max_files)
        .load(args.input)
    )
    hourly = (
        flights.withColumn("origin", airport("origin"))
        .withWatermark("ts", "1 hour")
        .groupBy(F.window("ts", "1 hour"), "origin")
        .agg(F.count("*").alias("flights"), F.sum("delay").alias("delay"))
        .select(F.col("window.start").alias("hour"), "origin", "flights", "delay")
    )
    query = (
        hourly.writeStream.format("parquet")
        .outputMode("append")
        .option("path", args.output)
        .option("checkpointLocation", args.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    logger.info("started %s", query.id)
    query.awaitTermination()
    print("hours:", spark.read.parquet(args.output).count())
    spark.stop()


if __name__ == "__main__":
    main()
