"""Applications on YARN, asked of a stand-in for its ResourceManager by the documented answers."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import requests

from airflow_provider.hooks import yarn
from airflow_provider.hooks.yarn import (
    ADDRESS,
    YarnClient,
    resource_managers,
    user_name,
    yarn_handle,
    yarn_tag,
)
from airflow_provider.runtime.api.launchers import LaunchState, LaunchStatus
from airflow_provider.runtime.errors import (
    ConfigError,
    LauncherAwayError,
    SubmissionRefusedError,
)
from tests.extensions.answering import changed
from tests.unit.resource_manager import ResourceManagerStandIn, an_app
from tests.unit.support import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
TOKEN = "7f" * 16
TAG = yarn_tag(TOKEN)
HANDLE = yarn_handle(TOKEN)
APPS = "/ws/v1/cluster/apps"
NOBODY = "http://127.0.0.1:9"  # where no server listens


@pytest.fixture
def manager() -> Iterator[ResourceManagerStandIn]:
    stand_in = ResourceManagerStandIn()
    yield stand_in
    stand_in.stop()


@pytest.fixture
def other() -> Iterator[ResourceManagerStandIn]:
    stand_in = ResourceManagerStandIn()
    yield stand_in
    stand_in.stop()


def client_of(*addresses: str, user: str = "streams", clock: Any = None) -> YarnClient:
    return YarnClient(addresses, user, clock)


# --- what an application is ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("app", "state", "code", "says"),
    [
        ({"state": "NEW"}, LaunchState.QUEUED, None, "NEW"),
        ({"state": "NEW_SAVING"}, LaunchState.QUEUED, None, "NEW_SAVING"),
        ({"state": "SUBMITTED"}, LaunchState.QUEUED, None, "SUBMITTED"),
        (
            {"state": "ACCEPTED", "diagnostics": "waiting for AM container\n[Sat] more"},
            LaunchState.QUEUED,
            None,
            "ACCEPTED waiting for AM container",
        ),
        ({"state": "RUNNING", "diagnostics": None}, LaunchState.RUNNING, None, "RUNNING"),
        ({"state": "FINISHED", "finalStatus": "SUCCEEDED"}, LaunchState.ENDED, 0, "FINISHED"),
        (
            {
                "state": "FINISHED",
                "finalStatus": "FAILED",
                "diagnostics": "User application exited with status 2",
            },
            LaunchState.ENDED,
            2,
            "FINISHED User application exited with status 2",
        ),
        (
            {
                "state": "FAILED",
                "finalStatus": "FAILED",
                "diagnostics": "AM Container for attempt_1 exited with  exitCode: 13",
            },
            LaunchState.ENDED,
            13,
            "FAILED AM Container for attempt_1 exited with  exitCode: 13",
        ),
        ({"state": "KILLED", "finalStatus": "KILLED"}, LaunchState.ENDED, None, "KILLED"),
        ({"state": "HIBERNATING"}, LaunchState.UNKNOWN, None, "HIBERNATING"),
    ],
)
def test_a_state_of_yarns_is_one_of_ours(
    manager: ResourceManagerStandIn, app: dict[str, Any], state: LaunchState, code: Any, says: str
) -> None:
    """An exit code is in what YARN says, and a state that is not known is no end."""
    manager.apps = [an_app(1, f"nightly,{TAG}", **app)]
    status = client_of(manager.url).poll(HANDLE)

    assert LaunchStatus(state, code, f"{manager.apps[0]['id']} {says}") == status
    assert [("GET", APPS, {"applicationTags": [TAG], "user.name": ["streams"]})] == manager.asked


@pytest.mark.parametrize("apps", [None, {}, {"app": []}])
def test_an_application_that_yarn_does_not_have_is_gone(
    manager: ResourceManagerStandIn, apps: Any
) -> None:
    """Each release has another way to write nothing."""
    manager.answer = (200, {}, json.dumps({"apps": apps}).encode())
    status = client_of(manager.url).poll(HANDLE)

    assert (LaunchState.GONE, f"YARN has no application with the tag {TAG}") == (
        status.state,
        status.reason,
    )


def test_a_list_of_one_may_be_left_out(manager: ResourceManagerStandIn) -> None:
    """An answer with the application itself in the place of its list is understood."""
    manager.answer = (200, {}, json.dumps({"apps": {"app": an_app(1, TAG)}}).encode())

    assert LaunchState.RUNNING is client_of(manager.url).poll(HANDLE).state


def test_of_several_applications_the_living_one_counts(manager: ResourceManagerStandIn) -> None:
    """An earlier start that has failed says nothing; of ended ones the last one counts."""
    failed = an_app(1, TAG, "FAILED", diagnostics="first")
    manager.apps = [an_app(3, TAG, "KILLED", diagnostics="third"), failed, an_app(2, TAG)]
    client = client_of(manager.url)
    living = client.poll(HANDLE)
    manager.apps = manager.apps[:2]
    last = client.poll(HANDLE)

    assert LaunchState.RUNNING is living.state
    assert last.reason.endswith("KILLED third")


# --- the end of one -----------------------------------------------------------------------------


def test_only_an_application_with_the_tag_is_ended(manager: ResourceManagerStandIn) -> None:
    """
    Whatever a server answers: an application of another token, or without tags, is not touched.
    """
    manager.apps = [
        an_app(1, TAG),
        an_app(2, f"{TAG}0"),
        an_app(3, yarn_tag("8" * 32)),
        an_app(4, ""),
        an_app(5, f"x,{TAG}", "ACCEPTED"),
        an_app(6, TAG, "FINISHED"),
        {k: v for k, v in an_app(7, TAG).items() if k != "applicationTags"},
    ]
    client_of(manager.url).end(HANDLE)
    client_of(manager.url).end(HANDLE)

    ended = [manager.apps[0]["id"], manager.apps[4]["id"]]
    assert ended == manager.kills()
    assert [{"state": "KILLED"}] * 2 == manager.bodies
    assert "streams" == manager.asked[1][2]["user.name"][0]
    assert "spark-stream" == manager.headers["X-XSRF-Header"]


def test_an_application_that_was_not_submitted_is_not_ended(
    manager: ResourceManagerStandIn,
) -> None:
    """The driver finds the request to end when it comes up."""
    client_of(manager.url).end(HANDLE)

    assert [] == manager.kills()


def test_a_refused_end_is_said(manager: ResourceManagerStandIn) -> None:
    """YARN decides who may end an application; the error names the user's way out."""
    manager.apps, manager.users = [an_app(1, TAG)], {"hdfs"}
    with pytest.raises(SubmissionRefusedError, match="403: User streams cannot .*HADOOP_USER_NAME"):
        client_of(manager.url).end(HANDLE)
    client_of(manager.url, user="hdfs").end(HANDLE)

    assert "KILLED" == manager.apps[0]["state"]


def test_an_id_that_is_none_is_no_part_of_a_path(manager: ResourceManagerStandIn) -> None:
    """An answer cannot direct a request elsewhere."""
    manager.apps = [an_app(1, TAG, id="../../../jmx")]
    with pytest.raises(LauncherAwayError, match="is no application's id"):
        client_of(manager.url).end(HANDLE)

    assert [] == manager.kills()


# --- several ResourceManagers -------------------------------------------------------------------


def test_a_standby_is_passed_over(
    manager: ResourceManagerStandIn, other: ResourceManagerStandIn
) -> None:
    """Status and end come from the active one, wherever it is in the list."""
    manager.be_standby_of(other.url)
    other.apps = [an_app(1, TAG)]
    client = client_of(manager.url, other.url)
    status = client.poll(HANDLE)
    client.end(HANDLE)

    assert LaunchState.RUNNING is status.state
    assert [other.apps[0]["id"]] == other.kills()


def test_a_redirection_is_not_followed(
    manager: ResourceManagerStandIn, other: ResourceManagerStandIn
) -> None:
    """A ticket goes to no server that was not named."""
    manager.be_standby_of(other.url)
    status = client_of(manager.url).poll(HANDLE)

    assert (LaunchState.UNKNOWN, []) == (status.state, other.asked)
    assert "answered 307: This is standby RM" in status.reason


def test_one_that_is_down_is_passed_over(manager: ResourceManagerStandIn) -> None:
    """And if none is there, each is named in one line."""
    manager.apps = [an_app(1, TAG)]
    status = client_of(NOBODY, manager.url).poll(HANDLE)
    manager.be_without_active()
    away = client_of(NOBODY, manager.url).poll(HANDLE)

    assert LaunchState.RUNNING is status.state
    assert (LaunchState.UNKNOWN, 1) == (away.state, len(away.reason.splitlines()))
    assert f"{NOBODY}: does not answer" in away.reason
    assert f"{manager.url}: GET {APPS} answered 307: Can not find any active RM" in away.reason


# --- other answers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (401, b"<html>Authentication required", "401: <html>Authentication required; set HADOOP"),
        (403, b"User: dr.who", "403: User: dr.who; set HADOOP_USER_NAME"),
        (404, b"<html>Not Found", "answered 404: <html>Not Found"),
        (503, b"starting", "answered 503: starting"),
        (200, b"<html>a login page", "the answer is not JSON"),
        (200, b"There is no active RM right now.", "the answer is not JSON"),
        (200, b"[]", "expected an object, found a list"),
        (200, b'{"apps": {"app": [{"id": 7, "state": "RUNNING"}]}}', "expected text"),
    ],
)
def test_an_answer_of_another_kind_is_unknown(
    manager: ResourceManagerStandIn, status: int, body: bytes, says: str
) -> None:
    """Nothing follows from it; the reason is one line with the address, and an end fails likewise."""
    manager.answer = (status, {}, body)
    client = client_of(manager.url)
    found = client.poll(HANDLE)
    with pytest.raises((ConfigError, LauncherAwayError), match=manager.url):
        client.end(HANDLE)

    assert LaunchState.UNKNOWN is found.state
    assert says in found.reason
    assert manager.url in found.reason


def test_an_answer_that_breaks_off_is_unknown(manager: ResourceManagerStandIn) -> None:
    """A part of a list is not the list."""
    manager.apps, manager.cut = [an_app(1, "another")], 5
    status = client_of(manager.url).poll(HANDLE)

    assert (LaunchState.UNKNOWN, True) == (status.state, "does not answer" in status.reason)


def test_an_answer_is_read_to_a_size_and_for_a_time(
    manager: ResourceManagerStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long answer is not kept, and one that drips ends."""
    manager.answer = (200, {}, b" " * 300_000)
    clock = FakeClock()
    monkeypatch.setattr(clock, "monotonic", itertools.count(0, 10).__next__)
    slow = client_of(manager.url, clock=clock).poll(HANDLE)
    monkeypatch.setattr(yarn, "_MOST_BYTES", 1000)
    long = client_of(manager.url).poll(HANDLE)

    for status in (slow, long):
        assert LaunchState.UNKNOWN is status.state
        assert "bytes of an answer, and no end" in status.reason


def test_no_answer_is_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a part of an answer is replaced by, a poll returns a status of one line."""
    client, seen = client_of("http://yarn:1"), set()
    for answer in changed({"apps": {"app": [an_app(1, TAG)]}}):
        monkeypatch.setattr(client, "_send", lambda *_, a=answer: (200, json.dumps(a)))
        status = client.poll(HANDLE)
        seen.add(status.state)
        assert 1 >= len(status.reason.splitlines())

    assert {LaunchState.RUNNING, LaunchState.GONE, LaunchState.UNKNOWN} == seen


def test_kerberos_is_used_where_its_package_is(
    manager: ResourceManagerStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for ``requests-kerberos`` signs each request."""

    class Auth(requests.auth.AuthBase):
        def __init__(self, mutual_authentication: str) -> None:
            self.mutual = mutual_authentication

        def __call__(self, request: Any) -> Any:
            request.headers["Authorization"] = f"Negotiate {self.mutual}"
            return request

    module: Any = SimpleNamespace(OPTIONAL="optional", HTTPKerberosAuth=Auth)
    monkeypatch.setitem(sys.modules, "requests_kerberos", module)
    client_of(manager.url).poll(HANDLE)

    assert "Negotiate optional" == manager.headers["Authorization"]


def test_a_check_says_who_answers(manager: ResourceManagerStandIn) -> None:
    """A person who tests a connection sees the address, or what is wrong with it."""
    assert f"the ResourceManager at {manager.url} answers" == client_of(manager.url).check(HANDLE)
    manager.answer = (401, {}, b"who are you")
    with pytest.raises(SubmissionRefusedError, match="who are you"):
        client_of(manager.url).check(HANDLE)


# --- addresses ----------------------------------------------------------------------------------


def site(folder: Path, **properties: str) -> dict[str, str]:
    """Write ``yarn-site.xml``, and return the environment that names its folder."""
    found = "".join(
        f"<property><name>{name.replace('__', '-').replace('_', '.')}</name>"
        f"<value> {value} </value></property>"
        for name, value in properties.items()
    )
    (folder / "yarn-site.xml").write_text(f"<configuration>{found}</configuration>")
    return {"HADOOP_CONF_DIR": str(folder)}


@pytest.mark.parametrize(
    ("given", "addresses"),
    [
        ("rm:8088", ("http://rm:8088",)),
        ("https://rm.example:8090/", ("https://rm.example:8090",)),
        ("http://rm1:8088, rm2:8088,", ("http://rm1:8088", "http://rm2:8088")),
    ],
)
def test_a_connection_names_the_resource_managers(
    tmp_path: Path, given: str, addresses: tuple[str, ...]
) -> None:
    """With the field of the apache-spark provider, which wins over the machine's files."""
    environ = site(tmp_path, yarn_resourcemanager_hostname="elsewhere")

    assert addresses == resource_managers({ADDRESS: given}, environ, named="x")


@pytest.mark.parametrize(
    "given", ["ftp://rm", "http://", "http://me:s3cr3t@rm:1", "rm:port", "x?y"]
)
def test_a_wrong_address_is_refused(given: str) -> None:
    """The error names the connection and the field, and shows no password."""
    with pytest.raises(ConfigError, match=f"conn_id 'x': {ADDRESS} in its extra") as raised:
        resource_managers({ADDRESS: given}, {}, named="conn_id 'x'")

    assert "s3cr3t" not in str(raised.value)


HA = {
    "yarn_resourcemanager_ha_enabled": "true",
    "yarn_resourcemanager_ha_rm__ids": "rm1,rm2",
    "yarn_resourcemanager_hostname_rm1": "one",
}


@pytest.mark.parametrize(
    ("properties", "addresses"),
    [
        ({"yarn_resourcemanager_hostname": "rm"}, ("http://rm:8088",)),
        (
            {"top": "rm.${domain}", "domain": "site", "yarn_resourcemanager_hostname": "${top}"},
            ("http://rm.site:8088",),
        ),
        ({"yarn_resourcemanager_webapp_address": "rm:80"}, ("http://rm:80",)),
        (
            {
                "yarn_http_policy": "HTTPS_ONLY",
                "yarn_resourcemanager_hostname": "rm",
                "yarn_resourcemanager_webapp_address": "rm:80",
            },
            ("https://rm:8090",),
        ),
        (
            {**HA, "yarn_resourcemanager_webapp_address_rm2": "two:81"},
            ("http://one:8088", "http://two:81"),
        ),
        ({**HA, "yarn_resourcemanager_hostname": "none"}, ("http://one:8088",)),
        ({"yarn_resourcemanager_hostname": "${env.RM}"}, ()),
        ({"yarn_resourcemanager_hostname": "${a}", "a": "${a}"}, ()),
        ({}, ()),
    ],
)
def test_a_site_names_the_resource_managers(
    tmp_path: Path, properties: dict[str, str], addresses: tuple[str, ...]
) -> None:
    """One, or each of several, as Hadoop's own clients read it."""
    assert addresses == resource_managers({}, site(tmp_path, **properties), named="x")


def test_the_first_folder_with_a_site_counts(tmp_path: Path) -> None:
    """As on Spark's classpath; without a file no address is known."""
    hadoop, yarn_folder = tmp_path / "hadoop", tmp_path / "yarn"
    hadoop.mkdir()
    yarn_folder.mkdir()
    environ = {"YARN_CONF_DIR": str(yarn_folder), "HADOOP_CONF_DIR": str(hadoop)}
    nothing = resource_managers({}, environ, named="x")
    site(yarn_folder, yarn_resourcemanager_hostname="second")
    second = resource_managers({}, environ, named="x")
    site(hadoop, yarn_resourcemanager_hostname="first")
    first = resource_managers({}, environ, named="x")

    assert ((), ("http://second:8088",), ("http://first:8088",)) == (nothing, second, first)


def test_a_broken_site_is_named(tmp_path: Path) -> None:
    """A file that is no XML is a mistake, and not a site without an address."""
    (tmp_path / "yarn-site.xml").write_text("<configuration>")
    with pytest.raises(ConfigError, match=r"yarn-site\.xml: cannot be read: no element|unclosed"):
        resource_managers({}, {"YARN_CONF_DIR": str(tmp_path)}, named="x")


def test_a_user_is_hadoops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable of Hadoop's clients, else the process's user; a container may have none."""

    def unknown() -> str:
        raise KeyError

    assert "hdfs" == user_name({"HADOOP_USER_NAME": "hdfs"})
    monkeypatch.setattr("getpass.getuser", lambda: "airflow")
    assert "airflow" == user_name({})
    monkeypatch.setattr("getpass.getuser", unknown)
    assert "" == user_name({})
