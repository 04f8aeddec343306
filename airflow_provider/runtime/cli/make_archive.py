"""Runs a small job in a JVM that keeps the classes it has loaded; see :mod:`..class_archive`."""

from __future__ import annotations

import sys

from airflow_provider.runtime.driver.warm_up import warm_up

if __name__ == "__main__":
    warm_up(conf={"spark.driver.extraJavaOptions": sys.argv[1]})
