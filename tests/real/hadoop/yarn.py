"""YARN: a ResourceManager that recovers, and a NodeManager; Spark's settings for both."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyspark

from tests.jvm import QUICK
from tests.real.hadoop.daemons import ANSWER_S, Daemon, ask_json, await_that, run_tool, write_site
from tests.real.hadoop.hdfs import Hdfs
from tests.real.hadoop.kdc import HOST, secured_yarn
from tests.real.ports import free_ports

RESOURCEMANAGER = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager"
NODEMANAGER = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
ADMIN = "org.apache.hadoop.yarn.client.cli.RMAdminCLI"
MEMORY_MB = 4096
EXPIRY_MS = 30_000  # a busy machine can stop a process for twenty seconds
LOOPBACK = "127.0.0.1"
QUEUES = "yarn.scheduler.capacity.root"
FULL = "full"
ENDED = frozenset({"FINISHED", "FAILED", "KILLED"})


class Yarn:
    """A ResourceManager and a NodeManager above an HDFS, each a process.

    Attributes:
        url: of the ResourceManager's REST API.
        containers: the folder of the containers' logs.
    """

    def __init__(self, folder: Path, hdfs: Hdfs) -> None:
        self.version, self.folder, self.hdfs = hdfs.version, folder, hdfs
        self.conf = hdfs.conf  # one folder, as HADOOP_CONF_DIR is
        folder.mkdir(parents=True)
        self._host = LOOPBACK if hdfs.kdc is None else HOST
        web, *manager = free_ports(5)
        self._node = free_ports(3)
        self.url = f"http://{self._host}:{web}"
        self.containers = folder / "containers"
        settings = {**self._manager(web, manager), **self._node_manager()}
        settings |= secured_yarn(hdfs.kdc) if hdfs.kdc is not None else {}
        write_site(self.conf / "yarn-site.xml", settings)
        self.set_room(1)
        version = self.version
        self.manager = Daemon(RESOURCEMANAGER, self.conf, folder, version=version, heap="256m")
        self.node = Daemon(NODEMANAGER, self.conf, folder, version=version, heap="256m")

    def _manager(self, web: int, ports: list[int]) -> dict[str, str]:
        prefix = "yarn.resourcemanager"
        names = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
        addresses = {
            f"{prefix}.{name}": f"{self._host}:{port}"
            for name, port in zip(names, ports, strict=True)
        }
        recovery = "org.apache.hadoop.yarn.server.resourcemanager.recovery"
        return {
            **addresses,
            f"{prefix}.hostname": self._host,
            f"{prefix}.webapp.address": f"{self._host}:{web}",
            f"{prefix}.recovery.enabled": "true",
            f"{prefix}.store.class": f"{recovery}.FileSystemRMStateStore",
            f"{prefix}.fs.state-store.uri": f"file://{self.folder}/state",
            f"{prefix}.work-preserving-recovery.scheduling-wait-ms": "500",
            f"{prefix}.nodemanagers.heartbeat-interval-ms": "200",
            f"{prefix}.connect.retry-interval.ms": "500",
            "yarn.nm.liveness-monitor.expiry-interval-ms": str(EXPIRY_MS),
            "yarn.am.liveness-monitor.expiry-interval-ms": "300000",
            "yarn.scheduler.minimum-allocation-mb": "256",
            "yarn.client.failover-sleep-base-ms": "200",
        }

    def _node_manager(self) -> dict[str, str]:
        prefix = "yarn.nodemanager"
        address, localizer, web = (f"{LOOPBACK}:{port}" for port in self._node)
        return {
            f"{prefix}.address": address,
            f"{prefix}.localizer.address": localizer,
            f"{prefix}.webapp.address": web,
            f"{prefix}.local-dirs": str(self.folder / "local"),
            f"{prefix}.log-dirs": str(self.containers),
            f"{prefix}.resource.memory-mb": str(MEMORY_MB),
            f"{prefix}.resource.cpu-vcores": "8",
            f"{prefix}.vmem-check-enabled": "false",
            f"{prefix}.pmem-check-enabled": "false",
            f"{prefix}.delete.debug-delay-sec": "600",
            f"{prefix}.recovery.enabled": "true",
            f"{prefix}.recovery.supervised": "true",
            f"{prefix}.recovery.dir": str(self.folder / "recovery"),
            # Else a disk of a machine of tests counts as full.
            f"{prefix}.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
        }

    def set_room(self, percent: int) -> None:
        """Let the queue :data:`FULL` have so much of the cluster; see :meth:`refresh_queues`."""
        settings = {
            f"{QUEUES}.queues": f"default,{FULL}",
            f"{QUEUES}.default.capacity": str(100 - percent),
            f"{QUEUES}.default.maximum-capacity": "100",
            f"{QUEUES}.{FULL}.capacity": str(percent),
            f"{QUEUES}.{FULL}.maximum-capacity": str(percent),
            "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
        }
        write_site(self.conf / "capacity-scheduler.xml", settings)

    def refresh_queues(self) -> None:
        run_tool(self.conf, self.version, ADMIN, "-refreshQueues")

    def start(self) -> None:
        self.manager.start()
        self.node.start()
        self.wait()

    def wait(self) -> None:
        """Wait until the ResourceManager has its NodeManager."""
        await_that(f"{self.url} is ready", self._is_ready)

    def _is_ready(self) -> bool:
        self.manager.check_is_alive()
        self.node.check_is_alive()
        return self.nodes() == 1

    def nodes(self) -> int | None:
        """Return how many NodeManagers are active; None if the ResourceManager does not answer."""
        found = ask_json(f"{self.url}/ws/v1/cluster/metrics")
        return None if found is None else int(found["clusterMetrics"]["activeNodes"])

    def apps(self) -> list[dict[str, Any]]:
        """Return all applications, the newest last."""
        found = ask_json(f"{self.url}/ws/v1/cluster/apps") or {}
        return sorted((found.get("apps") or {}).get("app", []), key=lambda app: str(app["id"]))

    def app(self) -> dict[str, Any]:
        """Return the newest application."""
        return self.apps()[-1]

    def masters(self) -> list[psutil.Process]:
        """Return the JVMs of application masters, which in deploy mode cluster are drivers."""
        return self._containers("ApplicationMaster") + self._containers("ExecutorLauncher")

    def executors(self) -> list[psutil.Process]:
        return self._containers("YarnCoarseGrainedExecutorBackend")

    def _containers(self, main: str) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                is_ours = any(str(self.folder) in word for word in words)
                has_main = any(word.endswith(f".{main}") for word in words)
                if is_ours and has_main and Path(words[0]).name == "java":
                    found.append(process)
        return found

    def end_applications(self) -> None:
        """Kill every application that has not ended."""
        for app in self.apps():
            if app["state"] not in ENDED:
                url = f"{self.url}/ws/v1/cluster/apps/{app['id']}/state"
                httpx.put(url, json={"state": "KILLED"}, timeout=ANSWER_S, trust_env=False)

        def have_ended() -> bool:
            return all(app["state"] in ENDED for app in self.apps()) and not self.masters()

        await_that("no application is left", have_ended)

    def heal(self) -> None:
        """Start whatever a test has killed."""
        for daemon in (self.manager, self.node):
            if not daemon.is_alive:
                daemon.start()
        self.wait()

    def stop(self) -> None:
        self.node.kill()
        self.manager.kill()
        for process in [*self.masters(), *self.executors()]:
            with contextlib.suppress(psutil.Error):
                for each in [*process.children(recursive=True), process]:
                    each.kill()

    def spark_conf(self) -> dict[str, str]:
        """Return the settings of an application here, which brings nothing of Spark with it."""
        jars = Path(pyspark.__file__).parent / "jars"
        variables = {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": LOOPBACK,
            "HADOOP_CONF_DIR": str(self.conf),
            "HADOOP_USER_NAME": os.environ.get("HADOOP_USER_NAME", ""),
        }
        named = {name: value for name, value in variables.items() if value}
        return {
            "spark.yarn.jars": f"local:{jars}/*",
            "spark.yarn.submit.waitAppCompletion": "true",
            "spark.executor.instances": "1",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "640m",
            "spark.yarn.am.memory": "512m",
            "spark.executor.extraJavaOptions": QUICK,
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.session.timeZone": "UTC",
            **{f"spark.yarn.appMasterEnv.{name}": value for name, value in named.items()},
            **{f"spark.executorEnv.{name}": value for name, value in named.items()},
        }


@contextlib.contextmanager
def running(yarn: Yarn) -> Iterator[Yarn]:
    """Run it for the block."""
    try:
        yarn.start()
        yield yarn
    finally:
        yarn.stop()
