"""HDFS and YARN of each version, for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real.hadoop.daemons import VERSIONS
from tests.real.hadoop.hdfs import Hdfs, running


@pytest.fixture(scope="module", params=VERSIONS)
def hdfs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hdfs]:
    with running(Hdfs(tmp_path_factory.mktemp("hdfs") / "cluster", request.param)) as started:
        yield started


@pytest.fixture
def calm(hdfs: Hdfs) -> Iterator[Hdfs]:
    """HDFS that an earlier test may have left in an outage, and that is well after this one."""
    yield hdfs
    hdfs.heal()
