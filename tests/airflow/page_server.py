"""An API server of Airflow by itself, with the page "Streams" and rows of tasks made by hand."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Any

import httpx
from handmade_page import put_slices, put_tasks
from services import Airflow, postgres_server, run_airflow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from sqlalchemy.orm import Session

    from airflow_provider.slices import Slice


class PageServer(Airflow):
    """An API server on PostgreSQL; nothing runs tasks, so nothing but the page uses the machine.

    Args:
        home: Airflow's own folder.
        dags: its DAGs, which are read once when it starts.
        database: its database.
    """

    def __init__(self, home: Path, dags: Path, database: str, **more: str) -> None:
        super().__init__(home, dags, database, **more)
        self.components = ["api-server"]
        self._database = database

    def start(self) -> None:
        """Start it, and wait until it answers."""
        run_airflow(["db", "migrate"], self.environment)
        run_airflow(["dags", "reserialize"], self.environment)
        super().start()

    def _is_healthy(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return bool(self._http.get("/api/v2/version").is_success)
        return False

    def put(self, tasks: Iterable[tuple[str, str, str, str | None, bool]]) -> None:
        """Put rows of tasks, as :func:`put_tasks` does."""
        put_rows(self._database, tasks)


def put_rows(database: str, tasks: Iterable[tuple[str, str, str, str | None, bool]]) -> None:
    """Put rows of tasks into Airflow's database, as :func:`put_tasks` does."""
    with _session(database) as session:
        put_tasks(session, tasks)


def put_slice_rows(
    database: str,
    dag_id: str,
    task_id: str,
    slices: Iterable[tuple[Slice, str | None, str | None]],
    **fields: Any,
) -> None:
    """Put rows of a backfill into Airflow's database, as :func:`put_slices` does."""
    with _session(database) as session:
        put_slices(session, dag_id, task_id, slices, **fields)


@contextlib.contextmanager
def _session(database: str) -> Iterator[Session]:
    from airflow.models import import_all_models
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    import_all_models()
    engine = create_engine(database)
    with Session(engine) as session:
        yield session
    engine.dispose()


@contextlib.contextmanager
def page_server(folder: Path, **more: str) -> Iterator[PageServer]:
    """Give one that runs, in a folder of its own."""
    os.environ.setdefault("AIRFLOW_HOME", str(folder / "home"))
    (folder / "dags").mkdir(parents=True, exist_ok=True)
    with postgres_server() as url:
        server = PageServer(folder / "home", folder / "dags", url, **more)
        try:
            server.start()
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def silent_store() -> Iterator[dict[str, str]]:
    """Give the environment of an S3 whose server takes each connection and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listener:
        # Nobody accepts: the kernel does, as it does for a process that hangs.
        yield {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{listener.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
