"""Real drivers as processes of their own, none of which outlives its test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "spark")]

from drivers import Drivers  # noqa: E402 - found through the path just set
from streams import Location  # noqa: E402 - the same

from tests.contract.conftest import serve_s3  # noqa: E402 - the same
from tests.extensions.postgres.postgres_support import new_database, postgres_server  # noqa: E402
from tests.unit.job_reader import strays  # noqa: E402


@pytest.fixture
def location(tmp_path: Path) -> Iterator[Location]:
    """Yield the folders of a job; its directory then has only files that its page names."""
    yield Location(tmp_path)
    assert [] == strays(tmp_path / "job")


@pytest.fixture
def drivers(location: Location) -> Iterator[Drivers]:
    started = Drivers(location)
    yield started
    started.end_all()


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    """Yield the address of a server of PostgreSQL."""
    with postgres_server() as url:
        yield url


@pytest.fixture
def url(database: str) -> str:
    """Return the address of an empty database."""
    return new_database(database)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[object]:
    """Yield S3 for the tests that write there: drivers find it in their environment."""
    if request.node.callspec.params["kind"] != "bucket":
        yield None
        return
    yield from serve_s3()
