"""Addresses of the files that a batch job reads, as Spark's log of read files has them."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.queries.batch_input import address_of


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("file:/in/a.csv", "file:///in/a.csv"),
        ("file:/in/a b%20ü.csv", "file:///in/a%20b%2520ü.csv"),
        ("file:/in/day=1/x[1]{2}?.csv", "file:///in/day=1/x%5B1%5D%7B2%7D%3F.csv"),
        ("s3a://bucket/a+b,c;d&e@f.csv", "s3a://bucket/a+b,c;d&e@f.csv"),
        ("hdfs://host:9000/in/#1.csv", "hdfs://host:9000/in/%231.csv"),
        ("/in/\t.csv", "/in/%09.csv"),
    ],
)
def test_an_address_is_quoted_as_java_quotes_it(path, address):
    """Letters beyond ASCII stay, and so does what Java leaves in a path."""
    assert address == address_of(path)
