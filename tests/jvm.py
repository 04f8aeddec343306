"""JVMs that the tests start, by the hundred: none lives long, so each should begin quickly."""

from __future__ import annotations

import functools
import sys
import time

from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.spark.class_archive import archive_options, make_archive

# A test's JVM never lives long enough for its best compiler to pay, and starts a `chmod` for each
# file that it makes, which costs twice as much through the helper that Java otherwise puts between.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK"
_LIMIT_S = 300.0


@functools.cache
def jvm_options() -> str:
    """Return the options of a JVM that starts quickly; the first call may take half a minute."""
    deadline = time.monotonic() + _LIMIT_S
    try:
        while make_archive() is None and time.monotonic() < deadline:
            time.sleep(0.2)  # another process of the suite is making it
    except SparkStreamError as error:  # without an archive the tests are only slower
        print(error, file=sys.stderr)
    return " ".join([QUICK, *archive_options()])
