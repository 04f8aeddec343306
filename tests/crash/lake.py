"""Tables of one kind, and what another program does to them while jobs read and write them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

BRONZE = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("user", pa.int32()),
        ("amount", pa.int32()),
        ("origin", pa.string()),
    ]
)
SILVER = pa.schema(list(BRONZE)[:4])
GOLD = pa.schema(
    [
        ("hour", pa.timestamp("us", "UTC")),
        ("user", pa.int32()),
        ("rows", pa.int64()),
        ("amount", pa.int64()),
    ]
)
TABLES = {
    "bronze": BRONZE,
    "silver": SILVER,
    "gold": GOLD,
    "silver_batch": SILVER,
    "gold_batch": GOLD,
}

_CLEANED = """select distinct id, epoch("at")::bigint as second, "user", amount
from bronze where amount >= 0"""


class DeltaLake:
    """Delta tables in folders."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def create(self) -> None:
        """Make the tables: that of bronze is partitioned by the program that a row is of."""
        from deltalake import DeltaTable

        for name, schema in TABLES.items():
            by = ["origin"] if name == "bronze" else None
            DeltaTable.create(self.location(name), schema=schema, partition_by=by)

    def location(self, name: str) -> str:
        return str(self._root / name)

    def _load(self, name: str) -> Any:
        from deltalake import DeltaTable

        return DeltaTable(self.location(name))

    def position(self, name: str) -> int:
        """Return the last commit."""
        return int(self._load(name).version())

    def append(self, name: str, rows: pa.Table) -> None:
        from deltalake import write_deltalake

        write_deltalake(self.location(name), rows, mode="append")

    def compact(self, name: str) -> bool:
        """Rewrite small files; return whether nobody was in the way."""
        from deltalake.exceptions import CommitFailedError

        try:
            found = self._load(name).optimize.compact()
        except CommitFailedError:
            return False
        return bool(found["numFilesRemoved"])

    def delete(self, name: str, origin: str, remainder: int) -> bool:
        """Delete all rows of one origin, and some of the job's own, whose files are rewritten."""
        from deltalake.exceptions import CommitFailedError

        condition = f"origin = '{origin}' or (origin = 'job' and id % 997 = {remainder})"
        try:
            self._load(name).delete(condition)
        except CommitFailedError:
            return False
        return True

    def expire(self, name: str, until: int) -> bool:
        """Remove what cleanups with a retention up to that version remove: files, and the log.

        As Delta does, what is before the last checkpoint of the versions that count no more.
        """
        table = self._load(name)
        log = self._root / name / "_delta_log"
        checkpoints = [
            int(path.name.partition(".")[0]) for path in log.glob("*.checkpoint.parquet")
        ]
        table.create_checkpoint()
        end = max((version for version in checkpoints if version <= until), default=0)
        old = [path for path in sorted(log.glob("*.json")) if int(path.stem) < end]
        live = set(table.file_uris())
        for path in old:
            for line in path.read_text().splitlines():
                removed = json.loads(line).get("remove")
                file = removed and self._root / name / removed["path"]
                if file and str(file) not in live:
                    file.unlink(missing_ok=True)
            path.unlink()
        return bool(old)

    def rows(self, name: str) -> pa.Table:
        return self._load(name).to_pyarrow_table()


class IcebergLake:
    """Iceberg tables in one SQL catalog."""

    def __init__(self, root: Path, uri: str | None = None) -> None:
        self.properties = {
            "name": "lake",
            "type": "sql",
            "uri": uri or f"sqlite:///{root}/catalog.db",
            "warehouse": f"file://{root}/warehouse",
        }

    def _catalog(self) -> Any:
        from pyiceberg.catalog import load_catalog

        return load_catalog(**self.properties)

    def create(self) -> None:
        """Make the tables: that of bronze is partitioned by the program that a row is of."""
        from pyiceberg.transforms import IdentityTransform

        with contextlib.closing(self._catalog()) as catalog:
            catalog.create_namespace("lake")
            for name, schema in TABLES.items():
                table = catalog.create_table(self.location(name), schema=schema)
                if name == "bronze":
                    with table.update_spec() as spec:
                        spec.add_field("origin", IdentityTransform(), "origin")

    def location(self, name: str) -> str:
        return f"lake.{name}"

    @contextlib.contextmanager
    def _open(self, name: str) -> Any:
        with contextlib.closing(self._catalog()) as catalog:
            yield catalog.load_table(self.location(name))

    def position(self, name: str) -> int:
        """Return the last commit's sequence number."""
        with self._open(name) as table:
            return int(table.metadata.last_sequence_number)

    def append(self, name: str, rows: pa.Table) -> None:
        while not self._tried(name, lambda table: table.append(rows)):
            pass

    def compact(self, name: str) -> bool:
        """Rewrite all files as one; return whether nobody was in the way."""
        from tests.extensions.iceberg.table_reader_support import compact

        def act(table: Any) -> bool:
            if len(table.inspect.files()) <= 1:
                return False
            compact(table)
            return True

        return self._tried(name, act)

    def delete(self, name: str, origin: str, remainder: int) -> bool:
        """Delete all rows of one origin, which are whole files."""
        del (
            remainder
        )  # a delete of some rows of a file is an overwrite, which adds the others again
        return self._tried(name, lambda table: table.delete(f"origin = '{origin}'"))

    def expire(self, name: str, until: int) -> bool:
        """Expire the snapshots up to a sequence number, with the files that only they have."""

        def act(table: Any) -> bool:
            current = table.current_snapshot()
            old = [
                snapshot.snapshot_id
                for snapshot in table.snapshots()
                if (snapshot.sequence_number or 0) <= until
                and current is not None
                and snapshot.snapshot_id != current.snapshot_id
            ]
            if not old:
                return False
            before = set(table.inspect.all_files()["file_path"].to_pylist())
            table.maintenance.expire_snapshots().by_ids(old).commit()
            table.refresh()
            for path in before - set(table.inspect.all_files()["file_path"].to_pylist()):
                Path(path.removeprefix("file://")).unlink()
            return True

        return self._tried(name, act)

    def _tried(self, name: str, act: Any) -> bool:
        from pyiceberg.exceptions import CommitFailedException, ValidationException
        from sqlalchemy.exc import OperationalError

        try:
            with self._open(name) as table:
                return act(table) is not False
        except (CommitFailedException, ValidationException, OperationalError):
            return False

    def rows(self, name: str) -> pa.Table:
        with self._open(name) as table:
            return table.scan().to_arrow()


def lake_of(kind: str, root: Path) -> DeltaLake | IcebergLake:
    """Return the tables of a kind in a folder."""
    return DeltaLake(root) if kind == "delta" else IcebergLake(root)


def cleaned(bronze: Any) -> list[tuple[Any, ...]]:
    """Return the rows of silver that a relation of bronze's rows gives, by DuckDB."""
    return _sorted(bronze.query("bronze", _CLEANED))


def summed(bronze: Any) -> list[tuple[Any, ...]]:
    """Return the rows of gold that a relation of bronze's rows gives, by DuckDB."""
    return _sorted(
        bronze.query(
            "bronze",
            f"""select second // 3600 * 3600, "user" % 10, count(*),
            sum(amount)::bigint from ({_CLEANED}) group by all""",
        )
    )


def as_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows of silver or gold, with times in seconds."""
    seconds = ", ".join(
        f'epoch("{field.name}")::bigint' if pa.types.is_timestamp(field.type) else f'"{field.name}"'
        for field in table.schema
    )
    return _sorted(duckdb.from_arrow(table).query("rows", f"select {seconds} from rows"))


def _sorted(relation: Any) -> list[tuple[Any, ...]]:
    return sorted(relation.fetchall())


def write_raw(folder: Path, number: int, rows: pa.Table) -> None:
    """Put a file of raw rows, whole at once."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{number:04d}.parquet"
    pq.write_table(rows, unfinished)
    unfinished.replace(folder / f"{number:04d}.parquet")
