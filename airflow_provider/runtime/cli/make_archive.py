"""Runs a small job in a JVM that keeps the classes it has loaded; see :mod:`.class_archive`."""

from __future__ import annotations

import sys

from airflow_provider.runtime.driver.warm_up import warm_up
from airflow_provider.runtime.spark.session import using_spark

NAME = "spark-stream warm-up"

if __name__ == "__main__":
    with using_spark(None, NAME, None, {"spark.driver.extraJavaOptions": sys.argv[1]}) as spark:
        warm_up(spark)
