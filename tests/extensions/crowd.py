"""One of those who use a table beside the job: ``python -m tests.extensions.crowd KIND PLACE N``.

Eight append rows of their own; the ninth compacts and removes what is not needed any more.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import random
import select
import sys
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from pyiceberg.exceptions import CommitFailedException, ValidationException
from sqlalchemy.exc import OperationalError

from tests.extensions.iceberg.iceberg_support import SCHEMA, load

CLEANER = 8
PAUSE_S = 0.5


def rows(name: str) -> pa.Table:
    return pa.Table.from_pylist([{"id": 0, "name": name}], schema=SCHEMA)


def of_delta(place: str) -> tuple[Callable[[str], Any], Callable[[], Any]]:
    def append(name: str) -> None:
        write_deltalake(place, rows(name), mode="append")

    def clean() -> None:
        DeltaTable(place).optimize.compact()
        DeltaTable(place).vacuum(dry_run=False, enforce_retention_duration=False)

    return append, clean


def of_iceberg(place: str) -> tuple[Callable[[str], Any], Callable[[], Any]]:
    properties = json.loads(place)

    def append(name: str) -> None:
        load(properties, "ns.events").append(rows(name))

    def clean() -> None:
        table = load(properties, "ns.events")
        table.overwrite(table.scan().to_arrow())
        before = dt.datetime.now(dt.timezone.utc) - dt.timedelta(seconds=20)
        load(properties, "ns.events").maintenance.expire_snapshots().older_than(before).commit()

    return append, clean


def main() -> None:
    """Work until the standard input ends."""
    kind, place, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
    append, clean = (of_delta if kind == "delta" else of_iceberg)(place)
    print("ready", flush=True)
    for step in itertools.count():
        if select.select([sys.stdin], [], [], PAUSE_S * random.random() * 2)[0]:
            return
        name = f"theirs-{number}-{step}"
        try:
            clean() if number == CLEANER else append(name)
        except (DeltaError, CommitFailedException, ValidationException, OperationalError):
            time.sleep(PAUSE_S)  # another writer was faster
        else:
            print("cleaned" if number == CLEANER else name, flush=True)


if __name__ == "__main__":
    main()
