"""Catalogs of Iceberg tables as processes on loopback: a REST catalog, and Hive's metastore."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pyspark
import requests

from tests.extensions.iceberg.iceberg_support import catalog_of
from tests.real.fetching import jars_of
from tests.real.ports import free_ports

HERE = Path(__file__).parent
SPARKS_JARS = Path(pyspark.__file__).parent / "jars"
START_S = 60.0
_FOR_ICEBERG = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar", "jcl-over-slf4j-*.jar")


class CatalogServer:
    """A catalog that is a process of its own; what it was told outlives the process.

    Attributes:
        port: on loopback, the same after each start.
        warehouse: the folder of its tables.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.warehouse = folder / "warehouse"
        self.port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def properties(self) -> dict[str, str]:
        """The catalog's properties for pyiceberg."""
        raise NotImplementedError

    def command(self) -> list[str]:
        raise NotImplementedError

    def is_up(self) -> bool:
        """Whether the server answers a question."""
        with contextlib.suppress(Exception), contextlib.closing(catalog_of(self.properties)) as it:
            it.list_namespaces()
            return True
        return False

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["java", "-Xmx300m", "-XX:+UseSerialGC", *self.command()],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env={**os.environ, "HADOOP_USER_NAME": "tests"},
            )
        deadline = time.monotonic() + START_S
        while not self.is_up():
            assert self._process.poll() is None, (self.folder / "log").read_text()[-3000:]
            assert time.monotonic() < deadline, "the catalog does not answer"
            time.sleep(0.2)

    def kill(self) -> None:
        """End the process as a machine does that fails."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class RestServer(CatalogServer):
    """Iceberg's REST catalog over SQLite; its tables are in *warehouse*, with more properties."""

    def __init__(
        self,
        folder: Path,
        warehouse: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder)
        self._warehouse = warehouse or f"file:{self.warehouse}"
        self._more = [text for pair in (properties or {}).items() for text in pair]

    @property
    def properties(self) -> dict[str, str]:
        return {"name": "test", "type": "rest", "uri": f"http://127.0.0.1:{self.port}"}

    def command(self) -> list[str]:
        hadoop = [path for each in _FOR_ICEBERG for path in SPARKS_JARS.glob(each)]
        jars = ":".join(map(str, [*jars_of(HERE / "pom.xml"), *hadoop]))
        places = [str(self.folder / "catalog.db"), self._warehouse, *self._more]
        return ["-cp", jars, str(HERE / "RestCatalog.java"), str(self.port), *places]

    def is_up(self) -> bool:
        with contextlib.suppress(requests.RequestException):
            return requests.get(f"{self.properties['uri']}/v1/config", timeout=5).ok
        return False


class Metastore(CatalogServer):
    """Hive's metastore over Derby, from the jars of PySpark; *settings* are of hive-site.xml."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(folder)
        self._settings = {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/db;create=true",
            "datanucleus.schema.autoCreateAll": "true",
            "datanucleus.connectionPoolingType": "none",
            "hive.metastore.schema.verification": "false",
            "hive.metastore.warehouse.dir": f"file:{self.warehouse}",
            **(settings or {}),
        }

    @property
    def properties(self) -> dict[str, str]:
        return {
            "name": "test",
            "type": "hive",
            "uri": f"thrift://127.0.0.1:{self.port}",
            "hive.hive2-compatible": "true",
        }

    def command(self) -> list[str]:
        rows = [
            f"<property><name>{name}</name><value>{escape(value)}</value></property>"
            for name, value in self._settings.items()
        ]
        text = "\n".join(["<configuration>", *rows, "</configuration>", ""])
        (self.folder / "hive-site.xml").write_text(text)
        path = f"{self.folder}:{SPARKS_JARS}/*"
        return ["-cp", path, str(HERE / "Metastore.java"), str(self.port)]


@contextlib.contextmanager
def running(server: Any) -> Iterator[Any]:
    """Run a server for the block."""
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def namespace_in(server: CatalogServer) -> Iterator[dict[str, str]]:
    """Make the namespace of the tests' table for the block; nothing of it stays."""
    catalog = catalog_of(server.properties)
    catalog.create_namespace("ns")
    try:
        yield server.properties
    finally:
        for table in catalog.list_tables("ns"):
            catalog.drop_table(table)
        catalog.drop_namespace("ns")
        catalog.close()
        shutil.rmtree(server.warehouse, ignore_errors=True)
