"""Flights by hour and airport: CSV files to Parquet in an object store."""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

parser = argparse.ArgumentParser()
parser.add_argument("--input", required=True)
parser.add_argument("--output", required=True)
args = parser.parse_args()

spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
flights = spark.readStream.csv(
    args.input, schema="ts timestamp, origin string, delay double", header=True
)
hours = (
    flights.withWatermark("ts", "1 hour")
    .groupBy(F.window("ts", "1 hour"), F.upper(F.trim("origin")).alias("origin"))
    .count()
    .select(F.col("window.start").alias("hour"), "origin", F.col("count").alias("flights"))
)
query = hours.writeStream.trigger(availableNow=True).start(args.output)
query.awaitTermination()
