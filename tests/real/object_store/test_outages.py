"""The server is restarted, busy or silent while a job runs whose files are all in it."""

from __future__ import annotations

import time
from typing import Any

import pytest
from drivers import Drivers
from stories import Story
from streams import Location

from airflow_provider.runtime.jobdir.lease import TIMEOUT_S
from tests.contract.conftest import StoreServer
from tests.real.object_store.seaweedfs import environment_of

pytestmark = [pytest.mark.spark, pytest.mark.real, pytest.mark.timeout(600)]

RESTART = "--restart=fixed-delay(attempts=infinite, delay=200 ms)"
ALL_METHODS = "GET HEAD PUT POST DELETE"


def test_a_server_that_restarts_is_waited_for(location: Location, drivers: Drivers, direct: Any):
    """It is killed in the middle of a batch, and comes back: the run ends in its first attempt."""
    story = Story(location, drivers)
    driver = story.hold()
    direct.kill()
    story.gate.say(100)
    direct.start()

    story.check_ended(driver, attempts=1)


def test_a_server_that_is_busy_is_asked_again(
    location: Location, drivers: Drivers, s3_server: StoreServer, monkeypatch: pytest.MonkeyPatch
):
    """It answers 503 to all that Spark and the driver ask; the driver restarts the query at most."""
    for name, value in environment_of(s3_server.address).items():
        monkeypatch.setenv(name, value)
    story = Story(location, drivers)
    driver = story.hold(RESTART)
    s3_server.requests()
    s3_server.disturb("unavailable", times=60, methods=ALL_METHODS)
    story.gate.say(100)

    story.check_ended(driver, attempts=1)
    assert {"driver", "spark"} <= {client_of(request) for request in s3_server.requests()}


def client_of(request: dict[str, Any]) -> str:
    """Return who has asked: Hadoop's client in Spark, or Python's."""
    return "spark" if "hadoop" in request["agent"].lower() else "driver"


def test_a_server_that_is_silent_for_longer_than_the_lease_costs_nobody_the_lease(
    location: Location, drivers: Drivers, direct: Any
):
    """All requests hang for longer than the lease's timeout; then the run goes on, and is exact."""
    story = Story(location, drivers)
    driver = story.hold()
    direct.pause()
    story.gate.say(100)
    began = time.monotonic()
    while time.monotonic() - began < TIMEOUT_S + 5:
        assert driver.is_alive, driver.log[-3000:]
        time.sleep(0.1)
    direct.resume()

    story.check_ended(driver, attempts=1)


def test_a_server_that_is_away_for_long_ends_the_driver_and_the_next_one_is_exact(
    location: Location, drivers: Drivers, direct: Any
):
    """Nobody answers for longer than the lease's timeout: the driver ends, worth a retry."""
    story = Story(location, drivers)
    driver = story.hold(RESTART)
    direct.kill()
    story.gate.say(100)
    code = driver.wait()
    direct.start()

    assert 3 == code, driver.log[-3000:]
    story.check_ended(story.drive(), attempts=2)
