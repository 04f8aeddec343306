"""Kerberos: a key distribution centre of MIT, with principals whose tickets are short."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import requests

from tests.real.fetching import python_packages
from tests.real.hadoop.daemons import ANSWER_S, AS_JSON, await_that
from tests.real.ports import free_ports

REALM = "TEST.LOCAL"
HOST = "localhost"
USER = "streams"
TICKET_S = 30
RENEW_S = 10
SKEW_S = 2
SERVICES = ("nn", "dn", "rm", "HTTP")
CLIENT = Path(__file__).with_name("kerberos.txt")
KERBEROS = {
    "hadoop.security.authentication": "kerberos",
    "hadoop.security.authorization": "true",
    # Else a client waits a minute before it looks at a renewed ticket.
    "hadoop.kerberos.min.seconds.before.relogin": "1",
}
PLACES = ("/usr/sbin", "/usr/bin", "/usr/local/sbin")


def tool(name: str) -> str:
    """Return a program of MIT Kerberos; without it the test is skipped."""
    found = shutil.which(name, path=os.pathsep.join(PLACES))
    if found is None:
        needed = "krb5-kdc krb5-admin-server krb5-user libkrb5-dev"
        pytest.skip(f"kerberos: no {name} here (Debian: {needed})")
    return found


def principal(service: str) -> str:
    return f"{service}/{HOST}@{REALM}"


class Kdc:
    """A key distribution centre, a keytab for all, and the ticket cache of :data:`USER`.

    Attributes:
        keytab: of all services and the user.
        cache: the user's ticket cache.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.keytab, self.cache = folder / "keytab", folder / "tickets"
        (self._port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "krb5.conf").write_text(
            f"[libdefaults]\ndefault_realm = {REALM}\ndns_lookup_kdc = false\n"
            "dns_lookup_realm = false\ndns_canonicalize_hostname = false\nrdns = false\n"
            f"clockskew = {SKEW_S}\nforwardable = true\nudp_preference_limit = 1\n"
            # Hadoop's client renews a ticket that is renewable, for everybody who reads the cache.
            f"ticket_lifetime = {TICKET_S}s\nrenew_lifetime = 0\n"
            f"[realms]\n{REALM} = {{\nkdc = 127.0.0.1:{self._port}\n}}\n"
            f"[domain_realm]\n{HOST} = {REALM}\n"
        )
        (folder / "kdc.conf").write_text(
            f'[kdcdefaults]\nkdc_listen = ""\nkdc_tcp_listen = 127.0.0.1:{self._port}\n'
            f"[realms]\n{REALM} = {{\ndatabase_name = {folder}/principal\n"
            f"key_stash_file = {folder}/stash\nacl_file = {folder}/acl\n"
            "max_life = 1h\nmax_renewable_life = 1d\n"
            "supported_enctypes = aes256-cts-hmac-sha1-96:normal\n}\n"
        )

    def environment(self) -> dict[str, str]:
        """Return the variables of each process that uses it: of MIT's library, and of Java's."""
        return {
            "KRB5_CONFIG": str(self.folder / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{self.cache}",
            "JAVA_TOOL_OPTIONS": f"-Djava.security.krb5.conf={self.folder}/krb5.conf "
            "-Djava.net.preferIPv4Stack=true",
        }

    def start(self) -> None:
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
        for name in SERVICES:
            self._run("kadmin.local", "-q", f"addprinc -randkey {name}/{HOST}")
        self._run("kadmin.local", "-q", f"addprinc -randkey -maxlife {TICKET_S}sec {USER}")
        names = " ".join([USER, *(f"{name}/{HOST}" for name in SERVICES)])
        self._run("kadmin.local", "-q", f"ktadd -k {self.keytab} -norandkey {names}")
        with (self.folder / "kdc.log").open("wb") as log:
            self._process = subprocess.Popen(
                [tool("krb5kdc"), "-n"], stdout=log, stderr=log, env=self._environ()
            )
        await_that("the KDC listens", self._listens)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def log_in(self) -> None:
        """Get a new ticket; a reader of the cache finds the old one or the new one."""
        fresh = self.folder / "fresh"
        self._run("kinit", "-k", "-t", str(self.keytab), "-c", f"FILE:{fresh}", USER)
        fresh.replace(self.cache)

    def log_out(self) -> None:
        self.cache.unlink(missing_ok=True)

    def has_ticket(self) -> bool:
        """Whether the user's ticket is valid."""
        command = [tool("klist"), "-s", "-c", f"FILE:{self.cache}"]
        return subprocess.run(command, env=self._environ(), check=False).returncode == 0

    def await_expiry(self) -> None:
        """Wait until the user's ticket is valid nowhere: servers forgive :data:`SKEW_S`."""
        within = 4.0 * TICKET_S
        await_that("the ticket has expired", lambda: not self.has_ticket(), within=within)
        due = time.monotonic() + 2 * SKEW_S
        await_that("for servers, too", lambda: time.monotonic() > due, within=within)

    @contextlib.contextmanager
    def renewing(self, every_s: float = RENEW_S) -> Iterator[list[int]]:
        """Get new tickets during the block, as a ``k5start`` beside a driver does.

        It yields a list that grows with each of them.
        """
        ended, renewed = threading.Event(), [0]

        def renew() -> None:
            while not ended.wait(every_s):
                self.log_in()
                renewed.append(renewed[-1] + 1)

        self.log_in()
        thread = threading.Thread(target=renew, name="k5start")
        thread.start()
        try:
            yield renewed
        finally:
            ended.set()
            thread.join()

    def ask_json(self, url: str) -> dict[str, Any] | None:
        """Return the JSON at an address that asks for a ticket; None without an answer."""
        from requests_kerberos import OPTIONAL, HTTPKerberosAuth

        if not self.has_ticket():
            self.log_in()
        try:
            auth = HTTPKerberosAuth(mutual_authentication=OPTIONAL)
            answer = requests.get(url, headers=AS_JSON, timeout=ANSWER_S, auth=auth)
            return dict(answer.json())
        except (requests.RequestException, ValueError):
            return None

    def _environ(self) -> dict[str, str]:
        return {**os.environ, **self.environment()}

    def _run(self, name: str, *arguments: str) -> None:
        command = [tool(name), *arguments]
        done = subprocess.run(
            command, env=self._environ(), capture_output=True, text=True, check=False
        )
        assert 0 == done.returncode, done.stdout + done.stderr


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Kdc]:
    """Run it for the block, in whose processes Kerberos is its own."""
    for name in ("kadmin.local", "krb5kdc", "kdb5_util", "kinit", "klist"):
        tool(name)
    packages = python_packages(CLIENT, alone=False)
    kdc, patch = Kdc(folder), pytest.MonkeyPatch()
    try:
        for name, value in kdc.environment().items():
            patch.setenv(name, value)
        patch.setenv("FSSPEC_WEBHDFS", '{"kerberos": true}')
        patch.setitem(fsspec.config.conf, "webhdfs", {"kerberos": True})  # which it has read before
        patch.syspath_prepend(str(packages))
        patch.setenv(
            "PYTHONPATH",
            os.pathsep.join(filter(None, [str(packages), os.environ.get("PYTHONPATH")])),
        )
        kdc.start()
        yield kdc
    finally:
        kdc.stop()
        patch.undo()
        sys.modules.pop("requests_kerberos", None)


def secured_hdfs(kdc: Kdc) -> dict[str, str]:
    """Return the settings of an HDFS with unencrypted data, whose users log in."""
    return {
        **_logins(kdc),
        "dfs.namenode.kerberos.principal": principal("nn"),
        "dfs.namenode.keytab.file": str(kdc.keytab),
        "dfs.datanode.kerberos.principal": principal("dn"),
        "dfs.datanode.keytab.file": str(kdc.keytab),
        "dfs.block.access.token.enable": "true",
        "dfs.permissions.enabled": "false",
        # Else a DataNode wants TLS, or ports of root's.
        "ignore.secure.ports.for.testing": "true",
    }


def secured_yarn(kdc: Kdc) -> dict[str, str]:
    """Return the settings of a ResourceManager whose REST API asks for a ticket."""
    return {
        **_logins(kdc),
        "yarn.resourcemanager.principal": principal("rm"),
        "yarn.resourcemanager.keytab": str(kdc.keytab),
        "yarn.resourcemanager.webapp.spnego-principal": principal("HTTP"),
        "yarn.resourcemanager.webapp.spnego-keytab-file": str(kdc.keytab),
        "hadoop.http.filter.initializers": (
            "org.apache.hadoop.security.AuthenticationFilterInitializer"
        ),
    }


def _logins(kdc: Kdc) -> dict[str, str]:
    """Return the settings of a server of HTTP that asks for tickets."""
    http = "hadoop.http.authentication"
    secret = kdc.folder / "secret"
    secret.write_text("of cookies")
    return {
        f"{http}.type": "kerberos",
        f"{http}.kerberos.principal": principal("HTTP"),
        f"{http}.kerberos.keytab": str(kdc.keytab),
        f"{http}.signature.secret.file": str(secret),
        # Else a cookie is as good as a ticket for ten hours.
        f"{http}.token.validity": "5",
    }
