"""Shown addresses: whatever form an address has, no message has its credentials."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.errors.redaction import shown_address, without_credentials


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://livy:8998", "http://livy:8998"),
        ("http://me:pw@livy:8998/x", "http://…@livy:8998/x"),
        ("http://me:p#ssw0rd@livy:8998", "http://…@livy:8998"),
        ("http://me:p/ssw0rd@livy:8998", "http://…@livy:8998"),
        ("http://me:1/ssw0rd@livy:8998", "http://…@livy:8998"),
        ("http://me:p?ssw0rd@livy:8998", "http://…@livy:8998"),
        ("http://me:p@ssw0rd@livy", "http://…@livy"),
        ("http://me:ssw0rd@", "http://…@"),
        ("http:/me:ssw0rd@livy", "http:/…@livy"),
        ("s3://bucket/2026-0?/*.csv", "s3://bucket/2026-0?/*.csv"),
        ("me:ssw0rd@livy", "…@livy"),
        ("token@livy", "…@livy"),
        ("k8s://https://me:ssw0rd@api:6443", "k8s://https://…@api:6443"),
        ("s3://KEY:ssw/0rd@bucket/path", "s3://…@bucket/path"),
        ("s3://bucket/day@1/x", "s3://bucket/day@1/x"),
        ("hdfs://nn:8020/a@b", "hdfs://nn:8020/a@b"),
        ("/data/day@1", "/data/day@1"),
        (
            "abfss://box@account.dfs.core.windows.net/x",
            "abfss://box@account.dfs.core.windows.net/x",
        ),
        ("postgresql://me:ssw0rd@db/x?sslmode=require", "postgresql://…@db/x?…"),
        ("jdbc:postgresql://db/x?user=me&password=ssw0rd", "jdbc:postgresql://db/x?…"),
        ("jdbc:sqlserver://db;user=me;password=ssw0rd", "jdbc:sqlserver://db;user=me;password=…"),
        ("host=db user=me password=ssw0rd", "host=db user=me password=…"),
        ("host=db password='ss w0rd' user=me", "host=db password=… user=me"),
        ("SASL://me:ssw0rd@broker:9092", "SASL://…@broker:9092"),
        ("", ""),
    ],
)
def test_an_address_is_shown_without_credentials(address: str, expected: str) -> None:
    """Also one that no library could read: a password may have any character."""
    assert expected == shown_address(address)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "cannot open postgresql://me:ssw0rd@db/x: refused",
            "cannot open postgresql://…@db/x: refused",
        ),
        (
            "jdbc:x://db?user=me&password=ssw0rd&ssl=1 failed",
            "jdbc:x://db?user=me&password=…&ssl=1 failed",
        ),
        (
            "token=3, secret_params=['x'], password: none",
            "token=3, secret_params=['x'], password: none",
        ),
        ("FATAL: password authentication failed", "FATAL: password authentication failed"),
        ("mail me@example.org at http://example.org", "mail me@example.org at http://example.org"),
    ],
)
def test_a_message_has_no_credentials_of_its_addresses(text: str, expected: str) -> None:
    """What a library says of an address is shown without what lets somebody in."""
    assert expected == without_credentials(text)
