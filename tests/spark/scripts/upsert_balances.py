#!/usr/bin/env python
"""Keep the balance of each account in a Delta table: foreachBatch with MERGE."""

import sys

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql.functions import sum as total

source, target, checkpoint = sys.argv[1:4]

spark = SparkSession.builder.appName("balances").getOrCreate()


def upsert(batch_df, batch_id):
    if batch_df.isEmpty():
        return
    rows = pa.Table.from_pylist(
        [{**row.asDict(), "batch": batch_id} for row in batch_df.collect()],
        schema=pa.schema(
            [("account", pa.string()), ("balance", pa.int64()), ("batch", pa.int64())]
        ),
    )
    if not DeltaTable.is_deltatable(target):
        write_deltalake(target, rows)
        return
    (
        DeltaTable(target)
        .merge(rows, "t.account = s.account", source_alias="s", target_alias="t")
        .when_matched_update_all()
        .when_not_matched_insert_all()
        .execute()
    )


payments = (
    spark.readStream.schema("account string, amount long")
    .option("maxFilesPerTrigger", "1")
    .json(source)
)
query = (
    payments.groupBy("account")
    .agg(total("amount").alias("balance"))
    .writeStream.foreachBatch(upsert)
    .outputMode("update")
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)

try:
    query.awaitTermination()
except KeyboardInterrupt:
    print("interrupted")
finally:
    query.stop()
    spark.stop()
