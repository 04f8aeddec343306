"""A cluster of Apache Kafka: brokers that are processes of their own, on ports of this machine."""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.real.fetching import jars_of
from tests.real.ports import free_ports

HERE = Path(__file__).parent
START_S = 60.0
VERSIONS = ("4.4.0", "3.9.1")


class Broker:
    """One broker, which is a controller, too."""

    def __init__(
        self, number: int, folder: Path, classpath: str, port: int, controller: int
    ) -> None:
        self.number = number
        self.address = f"127.0.0.1:{port}"
        self.controller = f"127.0.0.1:{controller}"
        self._folder, self._classpath = folder, classpath
        self._process: subprocess.Popen[bytes] | None = None

    def format(self, cluster: str, settings: Mapping[str, str]) -> None:
        """Write the broker's settings, and its folder of data."""
        self._folder.mkdir(parents=True)
        lines = [f"{name}={value}" for name, value in settings.items()]
        (self._folder / "server.properties").write_text("\n".join([*lines, ""]))
        tool = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", self._settings]
        done = subprocess.run(self._java("-Xmx128m", *tool), capture_output=True, check=False)
        assert 0 == done.returncode, done.stdout + done.stderr

    @property
    def _settings(self) -> str:
        return str(self._folder / "server.properties")

    def _java(self, *arguments: str) -> list[str]:
        return ["java", "-cp", self._classpath, *arguments]

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._java("-Xmx400m", "-XX:+UseSerialGC", "kafka.Kafka", self._settings),
                stdout=log,
                stderr=log,
                env={**os.environ, "LOG_DIR": str(self._folder)},
            )

    def kill(self) -> None:
        """End the process as a machine does that fails."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Cluster:
    """Brokers of one version.

    Attributes:
        brokers: all of them, also those that were killed.
    """

    def __init__(self, folder: Path, *, version: str = VERSIONS[0], brokers: int = 1) -> None:
        self._classpath = ":".join(map(str, jars_of(HERE / "pom.xml", kafka=version)))
        self._version = version
        ports = free_ports(2 * brokers)
        numbers = range(1, brokers + 1)
        self.brokers = [
            Broker(number, folder / str(number), self._classpath, port, controller)
            for number, port, controller in zip(
                numbers, ports[:brokers], ports[brokers:], strict=True
            )
        ]
        voters = ",".join(f"{each.number}@{each.controller}" for each in self.brokers)
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        for broker in self.brokers:
            settings = _settings_of(broker, folder, voters, brokers)
            broker.format(cluster, {**settings, **self.more_settings(broker)})

    def more_settings(self, broker: Broker) -> dict[str, str]:
        """Return what this kind of cluster sets beside and instead of the others' settings."""
        del broker
        return {}

    def limit_consumers(self, bytes_per_s: int) -> None:
        """Let a broker give each client no more than so much; at once for all that connect later."""
        home = "kafka.admin" if self._version.startswith("3.") else "org.apache.kafka.tools"
        tool = [f"{home}.ConfigCommand", "--bootstrap-server", self.servers, "--alter"]
        quota = ["--entity-type", "clients", "--entity-default", "--add-config"]
        command = [
            "java",
            "-cp",
            self._classpath,
            *tool,
            *quota,
            f"consumer_byte_rate={bytes_per_s}",
        ]
        done = subprocess.run(command, capture_output=True, check=False)
        assert 0 == done.returncode, done.stdout + done.stderr

    @property
    def servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def start(self) -> None:
        for broker in self.brokers:
            broker.start()
        self.wait()

    def wait(self) -> None:
        """Wait until all brokers know each other."""
        deadline = time.monotonic() + START_S
        while True:
            with contextlib.suppress(KafkaException):
                if len(self.admin.list_topics(timeout=2).brokers) == len(self.brokers):
                    return
            assert time.monotonic() < deadline, "the brokers do not answer"
            time.sleep(0.2)

    @functools.cached_property
    def admin(self) -> Any:
        """An administrator's client; its answers end with it."""
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 2})

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Create a topic, with as many copies as there are brokers, and wait until it is there."""
        settings = {name.replace("_", "."): value for name, value in config.items()}
        new = NewTopic(topic, partitions, len(self.brokers), config=settings)
        for made in self.admin.create_topics([new]).values():
            made.result()
        self._await_topic(topic, partitions)

    def grow(self, topic: str, partitions: int) -> None:
        for made in self.admin.create_partitions([NewPartitions(topic, partitions)]).values():
            made.result()
        self._await_topic(topic, partitions)

    def _await_topic(self, topic: str, partitions: int) -> None:
        deadline = time.monotonic() + START_S
        while True:
            found = self.admin.list_topics(topic, timeout=5).topics[topic].partitions
            if len(found) == partitions and all(p.leader >= 0 for p in found.values()):
                return
            assert time.monotonic() < deadline, f"topic {topic} has no leader"
            time.sleep(0.1)

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until nobody knows it."""
        for gone in self.admin.delete_topics([topic]).values():
            gone.result()
        deadline = time.monotonic() + START_S
        while topic in self.admin.list_topics(timeout=5).topics:
            assert time.monotonic() < deadline, f"topic {topic} is still there"
            time.sleep(0.1)

    def stop(self) -> None:
        for broker in self.brokers:
            broker.kill()


def _settings_of(broker: Broker, folder: Path, voters: str, brokers: int) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": str(broker.number),
        "controller.quorum.voters": voters,
        "listeners": f"PLAINTEXT://{broker.address},CONTROLLER://{broker.controller}",
        "advertised.listeners": f"PLAINTEXT://{broker.address}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(folder / str(broker.number) / "data"),
        "offsets.topic.replication.factor": str(brokers),
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": str(brokers),
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
        "log.retention.check.interval.ms": "500",
        "log.cleaner.backoff.ms": "500",
        "file.delete.delay.ms": "500",
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
    }


@contextlib.contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    """Run a cluster for the block."""
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
