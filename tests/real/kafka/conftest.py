"""Clusters of Kafka, one of each version for all tests that need no other."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.kafka.cluster import VERSIONS, Cluster, running


@pytest.fixture(scope="module", params=VERSIONS)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("kafka")
    with running(Cluster(folder, version=request.param)) as started:
        yield started


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """Return a name of the test's own."""
    name = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name.removeprefix("test_"))
    return f"t-{name[:100]}-{uuid.uuid4().hex[:6]}"
