"""A warm driver and a pool as processes, with everything but Spark.

``python without_jvm.py START LIMITS`` is a driver, ``python without_jvm.py pool …`` is the command
with such drivers. The JVM is the shell script of ``SPARK_HOME``, and whatever is asked of it is done.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airflow_provider.extensions.warm_drivers import driver, warm_drivers_command
from airflow_provider.extensions.warm_drivers.channel import Start
from airflow_provider.extensions.warm_drivers.jvm import Birth, Limits
from airflow_provider.extensions.warm_drivers.static_fields import StaticState
from airflow_provider.runtime.base.typed_json import decode, read_json
from airflow_provider.runtime.cli.main import main

STATIC = "spark.sql.warehouse.dir"


class Anything:
    """An object of which every attribute is there and every call succeeds."""

    def __getattr__(self, _: str) -> Anything:
        return self

    def __call__(self, *_: object, **__: object) -> Anything:
        return self


class StandInJvm(Anything):
    """A JVM as its processes see it."""

    def __init__(self, _: object) -> None:
        self.is_static = STATIC.__eq__

    def born(self) -> Birth:
        static_fields = StaticState({}, {}, {})
        return Birth({}, {}, (0, 0), {}, 0, (), "UTC", "en", static_fields, 0)

    def changed_property(self, _: Birth) -> None:
        return None

    def unfit(self, *_: object) -> str | None:
        return "it is unfit" if Path(os.environ["SPARK_HOME"], "unfit").exists() else None


class StandInSession(Anything):
    """A session of Spark, whose list of added jars is empty, or not."""

    def __bool__(self) -> bool:
        return "ADDS_JARS" in os.environ

    def stop(self) -> None:
        while "NEVER_STOPS" in os.environ:
            signal.pause()


def look() -> int:
    """Write what the process has of its client."""
    print(os.environ["GREETING"], os.getcwd(), sys.argv, sys.stdin.readline())
    print("to stderr", file=sys.stderr)
    return 7


def wait() -> int:
    """Wait for a signal."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
    print("at work", flush=True)
    while True:
        signal.pause()


def leave() -> int:
    """Leave a process behind, which has every open file of this one."""
    if (left := os.fork()) == 0:
        signal.pause()
        os._exit(0)
    print(left, flush=True)
    return 0


JOBS: dict[str, Callable[[], int]] = {
    "look": look, "wait": wait, "leave": leave, "vanish": lambda: os._exit(0),
}  # fmt: skip


def job(arguments: Sequence[str], spark: Callable[..., Any]) -> int:
    """Run a command of the tests; a number is an exit code, of a job with Spark."""
    if arguments[0] in JOBS:
        return JOBS[arguments[0]]()
    spark("job", None, {})
    return int(arguments[0])


def warm_up(*_: object, **__: object) -> None:
    if "NO_WARM_UP" in os.environ:
        raise RuntimeError("no warm-up")


if __name__ == "__main__":
    if sys.argv[1] == "warm-drivers":
        setattr(warm_drivers_command, "module_command", lambda _: [sys.executable, __file__])  # noqa: B010
        sys.exit(main(sys.argv[1:]))
    for name, value in {
        "Jvm": StandInJvm,
        "start_spark": lambda *_, **__: StandInSession(),
        "warm_up": warm_up,
        "spark_stream": job,
    }.items():
        setattr(driver, name, value)
    limits = Limits(**json.loads(sys.argv[2])) if sys.argv[2:] else None
    sys.exit(driver.Driver(decode(Start, read_json(sys.argv[1])), limits).serve())
