"""A job directory in an HDFS with Kerberos, and YARN's REST API, with tickets that soon end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import requests
from drivers import Drivers
from streams import Location

from airflow_provider.hooks.yarn import YarnClient, yarn_handle, yarn_tag
from airflow_provider.runtime.api.launchers import LaunchState
from airflow_provider.runtime.errors import EXIT_OK, EXIT_RETRY, ConfigError
from airflow_provider.runtime.storage.open import open_storage
from tests.real.hadoop import kdc as kerberos
from tests.real.hadoop.daemons import ANSWER_S, AS_JSON, VERSIONS, await_that
from tests.real.hadoop.hdfs import Hdfs
from tests.real.hadoop.hdfs import running as running_hdfs
from tests.real.hadoop.kdc import RENEW_S, TICKET_S, Kdc
from tests.real.hadoop.test_hdfs_jobs import Job
from tests.real.hadoop.yarn import Yarn

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.timeout(900)]

FILES = 40  # batches for longer than a ticket


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    with kerberos.running(tmp_path_factory.mktemp("kerberos") / "kdc") as started:
        yield started


@pytest.fixture(scope="module")
def secured(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    folder = tmp_path_factory.mktemp("hdfs") / "cluster"
    with running_hdfs(Hdfs(folder, VERSIONS[0], kdc)) as started:
        yield started


@pytest.fixture(scope="module")
def manager(secured: Hdfs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    """A ResourceManager without a node: what it is given stays in its queue."""
    yarn = Yarn(tmp_path_factory.mktemp("yarn") / "cluster", secured)
    yarn.manager.start()
    try:
        await_that("the ResourceManager asks for a login", lambda: _wants_login(yarn))
        yield yarn
    finally:
        yarn.stop()


def _wants_login(yarn: Yarn) -> bool:
    yarn.manager.check_is_alive()
    try:
        answer = requests.get(f"{yarn.url}/ws/v1/cluster/info", timeout=ANSWER_S)
    except requests.RequestException:
        return False
    return answer.status_code == requests.codes.unauthorized


def submit(yarn: Yarn, token: str) -> None:
    """Put an application with a driver's tag into the queue."""
    from requests_kerberos import OPTIONAL, HTTPKerberosAuth

    def post(path: str, body: dict[str, Any] | None = None) -> requests.Response:
        return requests.post(
            f"{yarn.url}/ws/v1/cluster/apps{path}",
            json=body,
            headers=AS_JSON,
            auth=HTTPKerberosAuth(mutual_authentication=OPTIONAL),
            timeout=ANSWER_S,
        )

    answer = post("/new-application")
    assert answer.ok, answer.text
    application = {
        "application-id": answer.json()["application-id"],
        "application-name": "a driver",
        "application-type": "SPARK",
        "am-container-spec": {"commands": {"command": "true"}},
        "application-tags": {"tag": yarn_tag(token)},
        "max-app-attempts": 1,
        "resource": {"memory": 256, "vCores": 1},
    }
    answer = post("", application)
    assert answer.ok, answer.text


def test_yarn_is_asked_with_a_ticket_and_one_that_has_expired_is_an_unknown_state(
    manager: Yarn, kdc: Kdc
) -> None:
    """Nothing follows from it but a reason with the fix; with a new ticket the task continues."""
    kdc.log_in()
    submit(manager, "d1")
    client, handle = YarnClient([manager.url], kerberos.USER), yarn_handle("d1")
    await_that("YARN has it", lambda: client.poll(handle).state is LaunchState.QUEUED)
    kdc.await_expiry()
    expired = client.poll(handle)
    with pytest.raises(ConfigError, match="keep a ticket"):
        client.end(handle)
    kdc.log_in()
    renewed = client.poll(handle)
    client.end(handle)
    await_that("YARN has ended it", lambda: client.poll(handle).state is LaunchState.ENDED)

    assert (LaunchState.UNKNOWN, LaunchState.QUEUED) == (expired.state, renewed.state)
    assert "keep a ticket" in expired.reason


def test_documents_need_a_ticket_and_one_that_has_expired_is_named(secured: Hdfs, kdc: Kdc) -> None:
    """Without a valid ticket nothing is taken for missing; a new one is enough."""
    kdc.log_in()
    storage = open_storage(f"{secured.url}/tickets")
    created = storage.put_if_absent("lease", b"mine"), storage.put_if_absent("lease", b"theirs")
    storage.put("large", b"x" * 2**21)
    kdc.await_expiry()
    for ask in (
        lambda: storage.read("lease"),
        lambda: storage.exists("missing"),
        lambda: storage.list(""),
        lambda: storage.put_if_absent("new", b"mine"),
    ):
        with pytest.raises(ConnectionError, match="Kerberos ticket.*kinit"):
            ask()
    kdc.log_in()

    assert (True, False) == created
    assert ["large", "lease"] == storage.list("")
    assert b"mine" == storage.read("lease")
    assert 2**21 == len(storage.read("large"))


def test_a_run_that_is_longer_than_its_tickets_is_exact(
    secured: Hdfs, kdc: Kdc, location: Location, drivers: Drivers
) -> None:
    """What renews them beside the driver is all that Python and Spark need."""
    job = Job(secured, location, drivers, files=FILES)
    with kdc.renewing() as renewed:
        driver = job.start(HADOOP_CONF_DIR=str(secured.conf))
        job.await_epochs(driver, 1)
        before = renewed[-1]
        code = driver.wait()
        after = renewed[-1]

    assert EXIT_OK == code, driver.log[-4000:]
    assert (after - before) * RENEW_S > TICKET_S
    job.check_exact()


def test_a_run_whose_ticket_expires_ends_as_one_that_another_try_resumes(
    secured: Hdfs, kdc: Kdc, location: Location, drivers: Drivers
) -> None:
    """Its error says what to do; with a new ticket the next driver ends exactly."""
    job = Job(secured, location, drivers, files=FILES)
    with kdc.renewing():
        driver = job.start(HADOOP_CONF_DIR=str(secured.conf))
        job.await_epochs(driver, 1)
    code = driver.wait()
    driver.end_group()
    print(f"exit code {code}: {driver.log[-1500:]}")
    with kdc.renewing():
        published = job.epochs()
        job.finish(HADOOP_CONF_DIR=str(secured.conf))

        job.check_exact()
    assert 1 <= published < FILES
    assert EXIT_RETRY == code, driver.log[-4000:]
    assert "kinit" in driver.log
