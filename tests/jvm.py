"""JVMs that the tests start, by the hundred: none lives long, so each should begin quickly."""

from __future__ import annotations

import functools
import sys
import time

from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.spark.class_archive import archive_options, make_archive

QUICK = " ".join(
    (
        # A JVM of the tests never lives long enough for its best compiler to pay.
        "-XX:TieredStopAtLevel=1",
        # Without that compiler Java has a small cache, and sweeps it over and over again.
        "-XX:ReservedCodeCacheSize=240m",
        "-XX:+UseSerialGC",
        # What Spark loads, without a full collection at each step on the way there.
        "-XX:MetaspaceSize=256m",
        # It starts a `chmod` for each file that it makes, by default through a helper process.
        "-Djdk.lang.Process.launchMechanism=VFORK",
    )
)
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
