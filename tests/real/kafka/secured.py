"""A cluster that asks clients who they are: TLS, SCRAM, and permissions by topic."""

from __future__ import annotations

import subprocess
from pathlib import Path

from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.real.kafka.cluster import VERSIONS, Broker, Cluster
from tests.real.ports import free_ports

_STORE_PASSWORD = "of-a-test"  # noqa: S105 - of a key that lives as long as the test
_LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required"
MECHANISM = "SCRAM-SHA-512"


class SecuredCluster(Cluster):
    """A broker with a second listener, for users; who comes by the first one may do everything.

    Attributes:
        secure_servers: the address of the second listener.
        certificate: its certificate, which signs itself, as PEM.
    """

    def __init__(self, folder: Path, *, version: str = VERSIONS[0]) -> None:
        (port,) = free_ports(1)
        self.secure_servers = f"127.0.0.1:{port}"
        folder.mkdir(parents=True, exist_ok=True)
        self._store = folder / "broker.p12"
        self.certificate = folder / "broker.pem"
        self._make_key()
        super().__init__(folder, version=version)

    def _make_key(self) -> None:
        where = ["-keystore", self._store, "-storetype", "PKCS12", "-storepass", _STORE_PASSWORD]
        about = ["-dname", "CN=broker", "-ext", "san=ip:127.0.0.1", "-keyalg", "RSA"]
        key = ["keytool", "-genkeypair", "-alias", "broker", "-validity", "30", *about, *where]
        shown = ["keytool", "-exportcert", "-rfc", "-alias", "broker", "-file", self.certificate]
        for command in (key, [*shown, *where]):
            subprocess.run([*map(str, command)], capture_output=True, check=True)

    def more_settings(self, broker: Broker) -> dict[str, str]:
        plain = f"PLAINTEXT://{broker.address}"
        secure = f"SECURE://{self.secure_servers}"
        protocols = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SECURE:SASL_SSL"
        return {
            "listeners": f"{plain},{secure},CONTROLLER://{broker.controller}",
            "advertised.listeners": f"{plain},{secure}",
            "listener.security.protocol.map": protocols,
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": MECHANISM,
            f"listener.name.secure.{MECHANISM.lower()}.sasl.jaas.config": f"{_LOGIN};",
            "ssl.keystore.location": str(self._store),
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.password": _STORE_PASSWORD,
            "ssl.key.password": _STORE_PASSWORD,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def add_user(self, name: str, password: str) -> None:
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(name, scram, password.encode())
        for done in self.admin.alter_user_scram_credentials([change]).values():
            done.result()

    def allow(self, name: str, kind: ResourceType, prefix: str, *operations: AclOperation) -> None:
        """Let a user do something with all things of a kind whose names begin so."""
        bindings = [
            AclBinding(
                kind,
                prefix,
                ResourcePatternType.PREFIXED,
                f"User:{name}",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for operation in operations
        ]
        for done in self.admin.create_acls(bindings).values():
            done.result()

    def let_read(self, name: str, prefix: str) -> None:
        """Let a user read the topics whose names begin so, in any group."""
        self.allow(name, ResourceType.TOPIC, prefix, AclOperation.READ, AclOperation.DESCRIBE)
        self.allow(name, ResourceType.GROUP, "spark", AclOperation.READ)

    def options_of(self, name: str, password: str) -> dict[str, str]:
        """Return options with which both sources and the sink come as this user."""
        return {
            "kafka.bootstrap.servers": self.secure_servers,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": MECHANISM,
            "kafka.sasl.jaas.config": f'{_LOGIN} username="{name}" password="{password}";',
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": str(self.certificate),
        }
