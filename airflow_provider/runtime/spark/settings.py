"""Spark's settings: which names a person has mistyped, and values with which no JVM starts.

Spark takes any name that begins with ``spark.``, and says nothing of one that nobody reads. The
names that the supported Sparks know are in ``settings.txt``; scripts/spark_settings.py writes
it from their jars. What begins as in :data:`FREE` is for others, or has a part that the user
chooses, and is not looked at.
"""

from __future__ import annotations

import difflib
import functools
import importlib.resources
import re
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.redaction import shown_address
from airflow_provider.runtime.errors.ways_out import of_caller

if TYPE_CHECKING:
    from collections.abc import Mapping

CHECK_NAMES: Final = "spark.stream.checkNames"
"""Set to ``false`` it lets every name pass: for one that is right and looks mistyped."""

FREE: Final = (
    # A part of the name is the user's.
    "spark.executorEnv.",
    "spark.hadoop.",
    "spark.hive.",
    "spark.kubernetes.driver.",
    "spark.kubernetes.driverEnv.",
    "spark.kubernetes.executor.",
    "spark.kubernetes.node.selector.",
    "spark.metrics.",
    "spark.mesos.",
    "spark.sql.catalog.",
    "spark.ssl.",
    "spark.yarn.am.resource.",
    "spark.yarn.appMasterEnv.",
    "spark.yarn.driver.resource.",
    "spark.yarn.executor.resource.",
    "spark.driver.resource.",
    "spark.executor.resource.",
    "spark.task.resource.",
    # Spark puts these together from parts.
    "spark.plugins.",
    "spark.rpc.io.",
    "spark.shuffle.io.",
    "spark.files.io.",
    "spark.network.",
    "spark.sql.streaming.stateStore.rocksdb.",
    # Of others.
    "spark.comet.",
    "spark.databricks.",
    "spark.gluten.",
    "spark.openlineage.",
    "spark.rapids.",
    "spark.snowflake.",
    "spark.sql.iceberg.",
    "spark.stream.",
)
_PREFIX: Final = "spark."
_ALIKE: Final = 0.8  # of two names that differ in a word; below it a suggestion is a guess
_SLIPS: Final = 2  # a letter too many, too few, another one, or two in the other order


def check_names(settings: Mapping[str, str], named: str) -> list[str]:
    """Refuse names of settings that are certainly mistyped.

    That is a name which no supported Spark knows, and which differs from a known one by at most
    two slips of a finger; or a known one without its ``spark.``, which Spark ignores.

    Args:
        settings: of Spark, by name.
        named: where they were given, such as ``--conf``.

    Returns:
        A line for each other name that no supported Spark knows: it may be right, as that of a
        library or a vendor, and is passed on.

    Raises:
        ConfigError: a name is mistyped; the message has the one that was meant, and the way to
            keep it.
    """
    if str(settings.get(CHECK_NAMES, "true")).lower() == "false":
        return []
    unsure = []
    for name in settings:
        if is_known(name):
            continue
        near = nearest(name)
        if near is not None and (near == _PREFIX + name or _slips(name, near) <= _SLIPS):
            msg = (
                f"{named} {name}: Spark has no such setting, and has {near}; correct the name, or "
                f"set {CHECK_NAMES}=false if it is right"
            )
            raise ConfigError(msg)
        hint = f"; did you mean {near}?" if near is not None else ""
        unsure.append(f"{named} {name}: no Spark from 3.5 to 4.3 has this setting{hint}")
    return unsure


_HEAP: Final = "spark.driver.memory"
_HEAP_SIZE: Final = re.compile(r"\d+[kmgt]", re.IGNORECASE)  # what -Xmx takes, with its unit
_MASTER: Final = re.compile(
    r"local|local\[(\d+|\*)(, *\d+)?\]|local-cluster\[.*\]|yarn|\w[\w+.-]*://.*"
)


def check_master_and_heap(master: str | None, settings: Mapping[str, str], named: str) -> None:
    """Refuse a master and a heap with which Spark cannot start, in words of a setting.

    What Spark and Java say of them is printed by the JVM, after which nobody is left to explain.

    Args:
        master: Spark's master URL, if one is given.
        settings: of Spark, by name.
        named: where the settings were given, such as ``--conf``.

    Raises:
        ConfigError: one of them is of no form that Spark knows.
    """
    if master is not None and _MASTER.fullmatch(master) is None:
        named_master = f"{of_caller('--master', 'master')} {shown_address(master)}"
        msg = (
            f"{named_master}: Spark knows no such master; write local[*], local[2], "
            "spark://HOST:PORT, yarn or k8s://HOST:PORT"
        )
        raise ConfigError(msg)
    heap = settings.get(_HEAP)
    if heap is not None and _HEAP_SIZE.fullmatch(heap) is None:
        msg = (
            f"{named} {_HEAP}={heap}: that is no size; write a number and one of k, m, g and t, "
            "such as 4g"
        )
        raise ConfigError(msg)


def is_known(name: str) -> bool:
    """Whether a supported Spark has the setting, or it is not Spark's to know."""
    return name in _known() or name.startswith(FREE)


def nearest(name: str) -> str | None:
    """Return the known name that is most like *name*; None when none is like it."""
    if _PREFIX + name in _known():
        return _PREFIX + name
    alike = difflib.get_close_matches(name, _known(), n=3, cutoff=_ALIKE)
    return min(alike, key=lambda each: _slips(name, each), default=None)


@functools.cache
def _known() -> frozenset[str]:
    text = importlib.resources.files(__package__).joinpath("settings.txt").read_text("utf-8")
    return frozenset(line for line in text.splitlines() if not line.startswith("#"))


def _slips(one: str, other: str) -> int:
    """Return how many slips make *other* of *one* (Damerau and Levenshtein's distance)."""
    before, last = [0], [0]
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        before, last, row = last, row, [i]
        for j, wanted in enumerate(other, start=1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != wanted))
            is_swapped = i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted
            row.append(min(cost, before[j - 2] + 1) if is_swapped else cost)
    return row[-1]
