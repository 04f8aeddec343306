"""A chain of jobs over tables that another program changes, killed at every failpoint in turn."""

from __future__ import annotations

import pytest

from tests.crash.lake import cleaned, summed
from tests.crash.table_chain import DRAINING, IN_BATCH, STEPS, Chain

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_chain_is_exact_whatever_happens(kind, location, drivers):
    """
    A million rows and those of another program, which meanwhile appends, compacts, deletes and
    expires. Each round kills each job at the next failpoint; gold is what DuckDB finds in all rows
    that were ever appended. Then silver and gold in BATCH mode, over the tables as they are.
    """
    chain = Chain(kind, location, drivers, rows=1_000_000)

    chain.rounds(list(STEPS))

    assert {"append", "compact", "delete", "expire"} == {
        act for act, n in chain.acts().items() if n
    }
    assert summed(chain.appended()) == chain.rows("gold")
    assert len(chain.raw()) == chain.read["bronze"]
    assert len(chain.appended()) == chain.read["silver"]
    for job, table in IN_BATCH.items():
        chain.run(job, "--mode=batch", to=table)
    assert cleaned(chain.bronze()) == chain.rows("silver_batch")
    assert chain.rows("gold") == chain.rows("gold_batch")
    assert {*STEPS, *DRAINING} == set(chain.deaths)
