"""Rules for every test: what it needs says in which process it runs, and when."""

from __future__ import annotations

import gc
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from airflow_provider.runtime.errors import redaction

# How fast a machine is says nothing about the code. `make test-all` takes the profile `whole`.
for profile, examples in {"choice": 25, "whole": 100}.items():
    settings.register_profile(
        profile,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("choice")

# Drivers of the tests neither use nor make what belongs to the user.
OURS = Path(__file__).parents[1] / ".work"
if OURS not in Path(os.environ.get("SPARK_STREAM_CACHE", "")).parents:
    os.environ["SPARK_STREAM_CACHE"] = str(OURS / "cache")
os.environ.pop("SPARK_STREAM_WARM_DRIVERS", None)
# Tests of several processes share the machine's slots, and each says itself how many drivers it has.
os.environ["SPARK_STREAM_LOCAL_DRIVERS"] = "off"

# Only a machine that loses power loses what was not flushed: `soak` has one, and `alone` measures.
# A flush takes as long as a small test, and with three processes on one disk several times that.
_FLUSH: Any = os.fsync


def _no_flush(fd: Any) -> None:
    os.fstat(fd)  # a descriptor that is closed is an error here, too


setattr(os, "fsync", _no_flush)  # noqa: B010 - a name of the standard library has one type

# Fixtures that take long to make: who has one gets all tests that need it.
SERVICES = ("airflow_services", "sqlite_airflow")
# A folder whose modules share servers, of which one each is enough.
SHARING = "tests/contract/"
# Where the process that deals out the tests finds their lanes.
LANES = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Look for no garbage while the tests are imported: there is none yet."""
    gc.disable()
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="lanes-")
        config.add_cleanup(folder.cleanup)
        config.stash[LANES] = Path(folder.name) / "lanes.json"


def pytest_collection_finish() -> None:
    """Never look again at what was imported: half a million objects that stay to the end."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    """Flush to the disk where a test loses power, or measures time."""
    flushes = {"soak", "alone"} & {mark.name for mark in item.iter_markers()}
    setattr(os, "fsync", _FLUSH if flushes else _no_flush)  # noqa: B010 - as above
    return (yield)


@pytest.fixture(autouse=True)
def forgets_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no text of a test be without the secrets of another one: a process has one set of them."""
    monkeypatch.setattr(redaction, "_known", redaction.Secrets({}))


# --- stores -------------------------------------------------------------------------------------
# One server of each kind for a process: each makes the environment point to itself.


@pytest.fixture(scope="session")
def s3() -> Iterator[Any]:
    from tests.contract.conftest import serve_s3  # late: the clients of stores take seconds

    yield from serve_s3()


@pytest.fixture(scope="session")
def gcs() -> Iterator[Any]:
    from tests.contract.conftest import serve_gcs

    yield from serve_gcs()


@pytest.fixture(scope="session")
def azure() -> Iterator[Any]:
    from tests.contract.conftest import serve_azure

    yield from serve_azure()


@pytest.fixture(scope="session")
def azurite_server() -> Iterator[Any]:
    from tests.contract.conftest import serve_azurite

    yield from serve_azurite()


@pytest.fixture
def azurite(azurite_server: Any) -> Iterator[Any]:
    from tests.contract.conftest import use_azurite

    yield from use_azurite(azurite_server)


@pytest.fixture(scope="session")
def hdfs() -> Iterator[Any]:
    from tests.contract.conftest import serve_hdfs

    yield from serve_hdfs()


@pytest.fixture
def httpfs() -> Iterator[Any]:
    from tests.contract.conftest import serve_httpfs

    yield from serve_httpfs()


# --- lanes --------------------------------------------------------------------------------------


def lane_of(item: pytest.Item) -> tuple[int, str]:
    """Tell what a test runs together with in one process, and how early that begins.

    The long lanes come first: Airflow's services, then the modules that start a JVM, then those that
    are slow. The modules of quick tests fill what time is left, so that all processes end together.
    """
    fixtures = getattr(item, "fixturenames", ())
    for name in SERVICES:
        if name in fixtures:
            return 0, name
    module = item.nodeid.partition("::")[0]
    ranks = {"spark": 1, "airflow": 2, "slow": 3, "long": 3}
    rank = next((ranks[mark] for mark in ranks if item.get_closest_marker(mark)), 4)
    return rank, f"{SHARING if module.startswith(SHARING) else module} {rank}"


def _order(item: pytest.Item) -> tuple[int, str]:
    """Tell the location of a test among others: those of one Airflow follow each other."""
    rank, lane = lane_of(item)
    return rank, lane if lane in SERVICES else ""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the long lanes first, and tell the process that deals out the tests which lane each has.

    Marks stay in the processes that run the tests. Node ids could carry the lane, as xdist's own
    groups do, were they not fixed with pytest 9.2.
    """
    for item in items:
        if item.get_closest_marker("alone") and "tests/perf/" not in item.nodeid:
            raise pytest.UsageError(
                f"{item.nodeid}: `make test-ci` looks for tests to run alone in tests/perf only"
            )
    items.sort(key=_order)
    worker = getattr(config, "workerinput", {})
    if table := worker.get("lanes"):
        written = Path(f"{table}.{worker['workerid']}")
        written.write_text(json.dumps({item.nodeid: lane_of(item)[1] for item in items}))
        written.replace(table)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a process of ``-n`` where to write the lanes."""
    node.workerinput["lanes"] = str(node.config.stash[LANES])


class Lanes(LoadScopeScheduling):  # type: ignore[misc]  # xdist tells no types here
    """Gives each lane to one process, in the order of the collection, and the next to who is free."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._lanes: dict[str, str] = {}

    def schedule(self) -> None:
        self._lanes = json.loads(self.config.stash[LANES].read_text())
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        return self._lanes[nodeid]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Lanes:
    """Spread the tests over the processes of ``-n``."""
    return Lanes(config, log)
