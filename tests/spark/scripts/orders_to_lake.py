"""Orders from a log of partitions (a source in Python) to the lake, by city and ten minutes."""

import argparse
import json
import os

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.functions import col, from_json, sum, window


class Slice(InputPartition):
    def __init__(self, partition, start, end):
        super().__init__((partition, start, end))
        self.partition, self.start, self.end = partition, start, end


class LogReader(DataSourceStreamReader):
    def __init__(self, folder):
        self.folder = folder

    def names(self):
        return sorted(os.listdir(self.folder))

    def initialOffset(self):
        return dict.fromkeys(self.names(), 0)

    def latestOffset(self):
        return {name: len(self.lines(name)) for name in self.names()}

    def partitions(self, start, end):
        return [Slice(name, start.get(name, 0), end[name]) for name in end]

    def read(self, part):
        for line in self.lines(part.partition)[part.start : part.end]:
            yield (part.partition, line)

    def lines(self, name):
        with open(os.path.join(self.folder, name)) as file:
            return file.read().splitlines()


class OrderLog(DataSource):
    @classmethod
    def name(cls):
        return "orderlog"

    def schema(self):
        return "partition string, value string"

    def streamReader(self, schema):
        return LogReader(self.options["folder"])


class Pipeline:
    def __init__(self, spark, config):
        self.spark = spark
        self.config = config

    def source(self):
        self.spark.dataSource.register(OrderLog)
        return self.spark.readStream.format("orderlog").option("folder", self.config["log"]).load()

    def transform(self, df):
        orders = df.select(
            from_json(col("value"), "ts timestamp, city string, amount long").alias("o")
        ).select("o.*")
        return (
            orders.withWatermark("ts", "5 minutes")
            .groupBy(window("ts", "10 minutes"), "city")
            .agg(sum("amount").alias("amount"))
            .select(col("window.start").alias("start"), "city", "amount")
        )

    def run(self):
        return (
            self.transform(self.source())
            .writeStream.queryName("orders")
            .format(self.config["format"])
            .option("checkpointLocation", self.config["checkpoint"])
            .trigger(availableNow=True)
            .start(self.config["output"])
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    with open(parser.parse_args().config) as file:
        settings = json.load(file)
    session = SparkSession.builder.getOrCreate()
    Pipeline(session, settings).run().awaitTermination()
