"""Kubernetes for all tests of a session."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.kubernetes.cluster import Cluster, running


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("kubernetes: its node needs root, and iproute2")
    # What pods see is below the folder of all tests; sockets have short names only.
    folder = Path(tempfile.mkdtemp(prefix="k8s-"))
    shared = tmp_path_factory.getbasetemp()
    with running(Cluster(folder, shared)) as started:
        yield started
    shutil.rmtree(folder, ignore_errors=True)
