"""A REST catalog whose tokens and credentials end, and whose answers to commits are lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.extensions.iceberg import lent_jobs
from tests.extensions.iceberg.iceberg_support import TABLE, catalog_of, load
from tests.extensions.iceberg.lending import BUCKET, Door, lending_store
from tests.real.catalogs.gateway import Lender, gateway_before
from tests.real.catalogs.servers import RestServer, running

pytestmark = [pytest.mark.real, pytest.mark.timeout(1800)]

FOR_EVER = "LENT99999999999999"
LOSES_EACH = 3


@pytest.fixture
def door() -> Iterator[Door]:
    with lending_store() as made:
        yield made


@pytest.fixture
def server(tmp_path: Path, door: Door) -> Iterator[RestServer]:
    of_its_own = {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": door.address,
        "s3.path-style-access": "true",
        "s3.access-key-id": FOR_EVER,
        "s3.secret-access-key": "of-the-server",
        "client.region": "us-east-1",
    }
    with running(RestServer(tmp_path / "rest", f"s3://{BUCKET}/warehouse", of_its_own)) as started:
        yield started


class Stream(NamedTuple):
    """A stream of *files* batches, and for how long credentials live beside it."""

    life_s: float
    files: int
    wait_s: float


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(Stream(4.0, 6, 5.0), id="half a minute"),
        pytest.param(Stream(60.0, 40, 15.0), id="ten minutes", marks=pytest.mark.soak),
    ],
)
def test_a_stream_outlives_its_credentials(server, door, stream):
    """No batch fails, each epoch is one snapshot, and no secret is in a file, log or address."""
    root, files = server.folder.parent, stream.files
    lender = Lender(stream.life_s, {"s3.endpoint": door.address, "s3.region": "us-east-1"})
    (root / "input").mkdir()
    for number in range(files):
        line = json.dumps({"id": number, "name": f"n{number}"})
        (root / "input" / f"{number}.json").write_text(f"{line}\n")
    with gateway_before(server.properties["uri"], lender, LOSES_EACH) as (gateway, address):
        properties = {
            "type": "rest",
            "uri": address,
            "oauth2-server-uri": f"{address}/v1/oauth/tokens",
            "credential": lender.credential,
        }
        # As Airflow gives a driver secrets: in its environment, not in its parameters.
        environ = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        for key, value in properties.items():
            environ[f"PYICEBERG_CATALOG__LENT__{key.upper().replace('-', '_')}"] = value
        properties["name"] = "lent"
        catalog_of(properties).create_namespace("ns")
        params = {
            "input": str(root / "input"),
            "catalog": json.dumps("lent"),
            "table": TABLE,
            "wait_s": str(stream.wait_s),
        }
        arguments = [f"--param={key}={value}" for key, value in params.items()]
        entry = ["--entry", f"{lent_jobs.__file__}:copied", "--mode", "streaming"]
        command = [sys.executable, "-m", "airflow_provider.runtime.cli", "run", str(root / "job")]
        with (root / "log").open("wb") as log:
            ended = subprocess.run(
                [*command, *entry, *arguments], env=environ, stdout=log, stderr=log, check=False
            )
        assert 0 == ended.returncode, (root / "log").read_text()[-3000:]
        table = load(properties)
        rows = table.scan().to_duckdb(table_name="t").execute("SELECT id, name FROM t").fetchall()

    assert sorted(rows) == [(n, f"n{n}") for n in range(files)]
    assert files == len(table.metadata.snapshots)
    (final,) = (root / "job").glob("runs/*/final.json")
    assert files == json.loads(final.read_text())["rows_read"]
    assert 1 == len(list((root / "job").glob("runs/*/attempts/*.json")))
    assert 0 == door.refused
    assert lender.refused > 0
    assert files == gateway.commits  # a lost answer is looked up, not sent again
    texts = [path.read_bytes() for path in root.rglob("*") if path.is_file()]
    for secret in lender.secrets:
        assert not any(secret.encode() in text for text in texts)
