"""JVMs that the tests start, by the hundred: none lives long, so each should begin quickly."""

from __future__ import annotations

import functools

from airflow_provider.runtime.class_archive import archive_options, make_in_background

# A test's JVM never lives long enough for its best compiler to pay.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def jvm_options() -> str:
    """Return the options of a JVM that starts quickly, with the archive of classes once it is there.

    The first tests of a new environment do without: waiting for it would cost more than it saves.
    """
    _begin_archive()
    return " ".join([QUICK, *archive_options()])


@functools.cache
def _begin_archive() -> None:
    make_in_background()
