"""The table of maturity: it is what the tests run with, and a run says what of it is unproven."""

from __future__ import annotations

import re

import pytest

from airflow_provider.runtime.base import maturity
from airflow_provider.runtime.base.maturity import COMPONENTS, Status, describe_all, unproven
from airflow_provider.runtime.storage.open import supported_schemes
from scripts import maturity as script
from scripts import versions
from tests.real.kafka import cluster

ROOT = script.ROOT


def row_with(word: str) -> str:
    (found,) = [each for each in COMPONENTS if re.search(rf"\b{word}\b", each.name)]
    return found.tested_with


def test_the_page_has_the_table():
    """It is not written by hand; ``python scripts/maturity.py`` writes it."""
    assert script.page() == script.PAGE.read_text(encoding="utf-8")


def test_versions_are_those_that_tests_pin():
    """Of Spark and Kafka."""
    sparks = [version.rpartition(".")[0] for version in versions.VERSIONS]
    assert f"Spark {', '.join(sparks[:-1])} and {sparks[-1]}" in row_with("jobs")
    assert f"Kafka {' and '.join(cluster.VERSIONS)}" in row_with("Kafka")


@pytest.mark.parametrize(
    ("uses", "names"),
    [
        ({"scheme": "file", "master": "local[2]"}, []),
        ({"scheme": "file", "master": "spark://host:7077"}, []),
        ({"scheme": "file", "master": "yarn"}, ["YARN"]),
        ({"scheme": "abfss"}, ["Google Cloud Storage, Azure"]),
        ({"scheme": "file", "master": "k8s://https://host"}, []),
        ({}, []),
    ],
)
def test_what_a_run_uses_is_looked_up(uses, names):
    """By the scheme of the job directory and by Spark's master."""
    assert names == [each.name.partition(", EMR")[0] for each in unproven(**uses)]


def test_each_scheme_has_a_row():
    """A storage that a job directory may lie in has a status."""
    known = {scheme for each in COMPONENTS for scheme in each.schemes}
    assert {*supported_schemes()} - {"memory", "local"} == known


def test_the_help_names_what_is_unproven():
    """And nothing else."""
    text = describe_all()
    for each in COMPONENTS:
        assert (f"  {each.name}: " in text) is (each.status is not Status.TESTED)


def test_a_run_says_each_of_them_in_a_line():
    """With what it was tested with, and where the table is."""
    (component,) = unproven(scheme="gs")
    line = maturity.describe_use(component)

    assert line.startswith("Google Cloud Storage, Azure: experimental, tested with a server of")
    assert line.endswith("(docs/index.md#maturity)")
