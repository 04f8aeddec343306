"""A job directory in S3 whose credentials end: what renews them, and what a fixed token does."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider.runtime.storage.open import open_storage
from tests.contract.conftest import forget_clients
from tests.extensions.iceberg.lending import BUCKET, Door, lending_store

LIFE_S = 2.0
# Prints credentials that end soon, as a company's own program for boto's credential_process does.
PROGRAM = f"""
import datetime as dt, json, time
ends = time.time() + {LIFE_S}
print(json.dumps({{
    "Version": 1,
    "AccessKeyId": f"LENT{{int(ends * 1000)}}",
    "SecretAccessKey": "secret",
    "SessionToken": "token",
    "Expiration": dt.datetime.fromtimestamp(ends, dt.timezone.utc).isoformat(),
}}))
"""


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    with lending_store() as made:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.address)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        forget_clients()
        yield made
    forget_clients()


@pytest.mark.slow
def test_a_program_renews_the_credentials_of_a_process_that_stays(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storage that outlives several credentials is never refused."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = {sys.executable} {program}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    storage = open_storage(f"s3://{BUCKET}/jobs/a")
    for number in range(3):
        storage.put(f"documents/{number}.json", b"{}")
        assert b"{}" == storage.read(f"documents/{number}.json")
        time.sleep(LIFE_S)

    assert 0 == door.refused


@pytest.mark.slow
def test_a_fixed_token_that_has_ended_is_refused_by_the_store(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing renews what the environment fixes: the error is the store's, and nothing is lost."""
    ends_ms = int((time.time() + LIFE_S) * 1000)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", f"LENT{ends_ms}")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    storage = open_storage(f"s3://{BUCKET}/jobs/b")
    storage.put("documents/0.json", b"{}")
    time.sleep(LIFE_S)
    with pytest.raises(PermissionError, match="expired"):
        storage.put("documents/1.json", b"{}")
