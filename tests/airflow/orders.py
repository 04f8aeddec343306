"""Input of the DAG whose runs are replayed, and what readers find in its four outputs."""

from __future__ import annotations

import datetime as dt
import os
from typing import TYPE_CHECKING

import pandas as pd
import psycopg2
from deltalake import DeltaTable

from tests.extensions.iceberg.iceberg_support import catalog_properties, load

if TYPE_CHECKING:
    from pathlib import Path

START = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
Rows = list[tuple[int, int]]


class Orders:
    """The folders and tables of the DAG ``replayed``.

    Args:
        data: where its folder lies.
        server: a database of PostgreSQL's superuser, in whose server the orders get their own.
        url: that one.
    """

    def __init__(self, data: Path, server: str, url: str) -> None:
        self.root = data / "replayed"
        self._input = self.root / "input"
        self._input.mkdir(parents=True)
        self._catalog = catalog_properties(self.root)
        self._url = url
        self._files: dict[int, dict[int, int]] = {}
        connection = psycopg2.connect(server.replace("+psycopg2", ""))
        connection.autocommit = True
        connection.cursor().execute("CREATE DATABASE orders")
        connection.close()

    def write(self, number: int, amounts: dict[int, int]) -> None:
        """Write, or correct, one file: amounts by the order's number."""
        self._files[number] = amounts
        time = START + dt.timedelta(minutes=number)
        path = self._input / f"{number}.csv"
        path.write_text("".join(f"{time:%F %T},{id_},{v}\n" for id_, v in amounts.items()))
        os.utime(path, (time.timestamp(),) * 2)

    def truth(self) -> Rows:
        """Return what one execution over the input, as it is now, gives."""
        return sorted((id_, v) for amounts in self._files.values() for id_, v in amounts.items())

    def outputs(self) -> dict[str, Rows]:
        """Return each sink's rows, sorted, with any duplicates."""
        frames = {
            "files": pd.read_parquet(self.root / "files"),
            "delta": DeltaTable(str(self.root / "delta")).to_pandas(),
            "iceberg": load(self._catalog, "ns.orders").scan().to_pandas(),
        }
        rows = {
            name: sorted(zip(frame["id"].tolist(), frame["amount"].tolist(), strict=True))
            for name, frame in frames.items()
        }
        connection = psycopg2.connect(self._url)
        cursor = connection.cursor()
        cursor.execute("SELECT id, amount FROM orders ORDER BY 1, 2")
        rows["postgres"] = cursor.fetchall()
        connection.close()
        return rows
