"""etcd, the API server, its controllers and its scheduler, each a process."""

from __future__ import annotations

import functools
import json
import secrets
import ssl
import urllib.request
from pathlib import Path
from typing import Any

from tests.real.kubernetes.certificates import write_certificates
from tests.real.kubernetes.programs import program
from tests.real.kubernetes.servers import Server
from tests.real.ports import free_ports

LOOPBACK = "127.0.0.1"
SERVICES = "10.96.77.0/24"
FIRST_SERVICE = "10.96.77.1"  # that of the API server itself
ISSUER = "https://kubernetes.default.svc"
ADMIN = "admin"
ANSWER_S = 5.0


class ControlPlane:
    """What has no need of a node: objects are stored, watched, controlled and scheduled.

    Attributes:
        url: of the API server.
        config: the administrator's kube config.
        tokens: by the user's name; :data:`ADMIN` may do everything, the others what roles say.
    """

    def __init__(self, folder: Path, address: str = LOOPBACK, *users: str) -> None:
        self._folder, self._address = folder, address
        folder.mkdir(parents=True, exist_ok=True)
        self._store, peer, self._port, controllers, scheduler = free_ports(5)
        self.url = f"https://{address}:{self._port}"
        self.tokens = {user: secrets.token_hex() for user in (ADMIN, *users)}
        lines = [
            f'{token},{user},{user},"{"system:masters" if user == ADMIN else user}"'
            for user, token in self.tokens.items()
        ]
        (folder / "users.csv").touch(mode=0o600)
        (folder / "users.csv").write_text("\n".join(lines))
        write_certificates(folder, [LOOPBACK, address, FIRST_SERVICE], ["kubernetes.default.svc"])
        self.config = self.write_config("admin.config", ADMIN)
        self._ports = {"kube-controller-manager": controllers, "kube-scheduler": scheduler}
        self.etcd = Server("etcd", folder, program("etcd"), self._etcd(peer))
        self.api = Server("kube-apiserver", folder, program("kube-apiserver"), self._api())

    def _etcd(self, peer: int) -> dict[str, object]:
        store = f"http://{LOOPBACK}:{self._store}"
        return {
            "data-dir": self._folder / "etcd",
            "listen-client-urls": store,
            "advertise-client-urls": store,
            "listen-peer-urls": f"http://{LOOPBACK}:{peer}",
            "unsafe-no-fsync": "true",
            "logger": "zap",
            "log-level": "warn",
        }

    def _api(self) -> dict[str, object]:
        return {
            "etcd-servers": f"http://{LOOPBACK}:{self._store}",
            "bind-address": self._address,
            "secure-port": self._port,
            # Loopback is refused as what is advertised, even where nobody asks for it.
            "advertise-address": FIRST_SERVICE if self._address == LOOPBACK else self._address,
            "tls-cert-file": self._folder / "server.crt",
            "tls-private-key-file": self._folder / "server.key",
            # It reads logs of pods at their node, which has no name that could be looked up.
            "kubelet-preferred-address-types": "InternalIP",
            "kubelet-client-certificate": self._folder / "server.crt",
            "kubelet-client-key": self._folder / "server.key",
            "token-auth-file": self._folder / "users.csv",
            "service-account-key-file": self._folder / "tokens.pub",
            "service-account-signing-key-file": self._folder / "tokens.key",
            "service-account-issuer": ISSUER,
            "service-cluster-ip-range": SERVICES,
            "authorization-mode": "Node,RBAC",
            "allow-privileged": "false",
            "cert-dir": self._folder / "certificates",
        }

    @functools.cached_property
    def controllers(self) -> Server:
        return self._client("kube-controller-manager")

    @functools.cached_property
    def scheduler(self) -> Server:
        return self._client("kube-scheduler")

    def _client(self, name: str) -> Server:
        options: dict[str, object] = {
            "kubeconfig": self.config,
            "authentication-kubeconfig": self.config,
            "authorization-kubeconfig": self.config,
            "bind-address": LOOPBACK,
            "secure-port": self._ports[name],
            "leader-elect": "false",
            "cert-dir": self._folder / "certificates",
        }
        if name == "kube-controller-manager":
            options |= {
                "root-ca-file": self._folder / "ca.crt",
                "service-account-private-key-file": self._folder / "tokens.key",
                # Else a node is taken for lost after 50 seconds.
                "node-monitor-grace-period": "12s",
                "node-monitor-period": "1s",
            }
        return Server(name, self._folder, program(name), options)

    def write_config(self, name: str, user: str, namespace: str = "default") -> Path:
        """Write a kube config with a user's token, and return its path."""
        file = self._folder / name
        file.touch(mode=0o600)
        cluster = {"server": self.url, "certificate-authority": str(self._folder / "ca.crt")}
        context = {"cluster": "tests", "user": user, "namespace": namespace}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": self.tokens[user]}}],
            "contexts": [{"name": "tests", "context": context}],
        }
        file.write_text(json.dumps(config))
        return file

    @property
    def authority(self) -> Path:
        return self._folder / "ca.crt"

    def start(self) -> None:
        """Start all; return when the API server answers and pods can be made."""
        self.start_store()
        self.controllers.start()
        self.scheduler.start()
        accounts = "/api/v1/namespaces/default/serviceaccounts/default"
        self.controllers.await_ready(lambda: self.ask(accounts) is not None)

    def start_store(self) -> None:
        """Start etcd and the API server alone: objects are kept, and nothing becomes of them."""
        self.etcd.start()
        self.start_api()

    def start_api(self) -> None:
        """Start the API server, also again."""
        self.api.start()
        self.api.await_ready(lambda: self.ask("/readyz") == "ok")

    def ask(self, path: str) -> Any:
        """Return what the API server answers, as the administrator; None for no or a bad answer."""
        context = ssl.create_default_context(cafile=str(self.authority))
        login = {"Authorization": f"Bearer {self.tokens[ADMIN]}"}
        request = urllib.request.Request(self.url + path, headers=login)  # noqa: S310 - its own
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S, context=context) as answer:  # noqa: S310
                return answer.read().decode()
        except OSError:
            return None

    def stop(self) -> None:
        for server in (self.scheduler, self.controllers, self.api, self.etcd):
            server.kill()

    def stop_store(self) -> None:
        self.api.kill()
        self.etcd.kill()
