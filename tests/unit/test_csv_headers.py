"""Errors of a CSV file whose header does not name the columns of the schema."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.failures.classify import classify
from airflow_provider.runtime.sources.csv_options import with_header_check

FAILED = (
    "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/a%20b.csv. "
    "SQLSTATE: KD001"
)
COLUMNS = (
    "CSV header does not conform to the schema.\n Header: s, n\n Schema: n, s\n"
    "Expected: n but found: s\nCSV file: file:///in/a%20b.csv"
)
NUMBER = (
    "Number of column in CSV header is not equal to number of fields in the schema:\n"
    " Header length: 1, schema size: 2\nCSV file: file:///in/a%20b.csv"
)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (COLUMNS, "names the columns 's, n', and the schema 'n, s'"),
        (NUMBER, "has 1 columns, and the schema 2"),
    ],
)
def test_another_header_is_permanent_and_named_whole(words, said):
    """The file, what it has and what is wanted are in one line, with the fix."""
    error = RuntimeError(FAILED)
    error.__cause__ = ValueError(words)

    failure = classify(error)

    assert FailureClass.NON_RECOVERABLE is failure.failure_class
    assert f"the header of /in/a b.csv {said}: its values" in failure.reason
    assert "set enforceSchema='true', which reads the values by position" in failure.remedy


@pytest.mark.parametrize(
    ("file_format", "options", "added"),
    [
        ("csv", {"header": "true"}, {"enforceSchema": "false"}),
        ("CSV", {"HEADER": "True", "sep": ";"}, {"enforceSchema": "false"}),
        ("csv", {"header": "true", "enforceschema": "true"}, {}),
        ("csv", {"header": "false"}, {}),
        ("csv", {}, {}),
        ("json", {"header": "true"}, {}),
    ],
)
def test_headers_are_checked_unless_the_job_says_otherwise(file_format, options, added):
    """Spark's own default reads by position whatever a header says."""
    assert {**options, **added} == with_header_check(file_format, options)
