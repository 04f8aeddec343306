"""A chain of jobs over tables that the connectors read, and that this package's sinks write."""

from __future__ import annotations

from typing import Any

import pytest

from scripts import versions
from tests.crash.lake import IcebergLake, cleaned, summed
from tests.crash.table_chain import DRAINING, IN_BATCH, Chain
from tests.real.fetching import jars_of, pyspark_of
from tests.real.table_connectors.test_table_connectors import EXTENSIONS, HERE, SPARK

pytestmark = [pytest.mark.spark, pytest.mark.real, pytest.mark.timeout(1800)]

STEPS = (
    "sink.staged:2",  # of bronze, which has two batches of files in a round
    "ends.recorded",
    "sink.precommitted",
    "{kind}.committed",
    "sink.committed",
)
# Iceberg's connector needs the snapshot of the last append that it has read, and those after it.
EARLIER = {"delta": 0, "iceberg": 50}


def conf_of(chain: Chain) -> dict[str, str]:
    """Return Spark's settings for the connector; Iceberg's tables need a catalog."""
    lake = chain.lake
    if not isinstance(lake, IcebergLake):
        return EXTENSIONS["delta"]
    catalog = "spark.sql.catalog.lake"
    return {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "jdbc",
        f"{catalog}.uri": "jdbc:sqlite:" + lake.properties["uri"].removeprefix("sqlite:///"),
        f"{catalog}.jdbc.schema-version": "V1",
        f"{catalog}.warehouse": lake.properties["warehouse"],
    }


@pytest.fixture(params=["delta", "iceberg"])
def chain(request: Any, location: Any, drivers: Any) -> Chain:
    chain = Chain(request.param, location, drivers, rows=200_000, by="connector")
    jars = ",".join(map(str, jars_of(HERE / "pom.xml")))
    conf = {"spark.jars": jars, **conf_of(chain)}
    chain.more = tuple(f"--conf={key}={value}" for key, value in conf.items())
    environment = versions.environment_of(pyspark_of(SPARK))
    chain.environment = {name: environment[name] for name in ("PYTHONPATH", "SPARK_STREAM_CACHE")}
    chain.needed = EARLIER[request.param]
    return chain


def test_a_chain_is_exact_by_connectors(chain):
    """As without a jar, while another program appends, compacts, deletes and expires."""
    chain.rounds(list(STEPS))

    assert summed(chain.appended()) == chain.rows("gold")
    for job, table in IN_BATCH.items():
        chain.run(job, "--mode=batch", to=table)
    assert cleaned(chain.bronze()) == chain.rows("silver_batch")
    assert chain.rows("gold") == chain.rows("gold_batch")
    assert {*STEPS, *DRAINING} == set(chain.deaths)
