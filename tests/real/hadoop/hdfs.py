"""HDFS: a NameNode and a DataNode."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.real.hadoop.daemons import Daemon, ask_json, await_that, make_conf, run_tool, write_site
from tests.real.hadoop.kdc import HOST, KERBEROS, Kdc, secured_hdfs
from tests.real.ports import free_ports

NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
ADMIN = "org.apache.hadoop.hdfs.tools.DFSAdmin"


class Hdfs:
    """A NameNode and a DataNode, each a process.

    Args:
        kdc: of its Kerberos; None for users who are believed.

    Attributes:
        conf: the folder that HADOOP_CONF_DIR names.
        spark_url: the address at which Hadoop's clients know it.
        url: WebHDFS' address.
    """

    def __init__(self, folder: Path, version: str, kdc: Kdc | None = None) -> None:
        self.version, self.folder, self.kdc = version, folder, kdc
        self.conf = make_conf(folder / "conf")
        self._host = "127.0.0.1" if kdc is None else HOST
        rpc, web, *datanode = free_ports(5)
        self.spark_url = f"hdfs://{self._host}:{rpc}"
        self._web = f"{self._host}:{web}"
        self.url = f"webhdfs://{self._web}"
        core = {"fs.defaultFS": self.spark_url, "hadoop.tmp.dir": str(folder / "tmp")}
        secured = secured_hdfs(kdc) if kdc is not None else {}
        write_site(self.conf / "core-site.xml", {**core, **(KERBEROS if kdc is not None else {})})
        write_site(self.conf / "hdfs-site.xml", {**self._settings(datanode), **secured})
        self.namenode = Daemon(NAMENODE, self.conf, folder, version=version, heap="256m")
        self.datanode = Daemon(DATANODE, self.conf, folder, version=version, heap="256m")

    def _settings(self, ports: list[int]) -> dict[str, str]:
        data, web, ipc = (f"{self._host}:{port}" for port in ports)
        return {
            "dfs.namenode.name.dir": f"file://{self.folder}/name",
            "dfs.datanode.data.dir": f"file://{self.folder}/data",
            "dfs.namenode.http-address": self._web,
            "dfs.datanode.address": data,
            "dfs.datanode.http.address": web,
            "dfs.datanode.ipc.address": ipc,
            "dfs.datanode.hostname": self._host,
            "dfs.replication": "1",
            "dfs.namenode.safemode.extension": "0",
            "dfs.heartbeat.interval": "1",
            "dfs.namenode.heartbeat.recheck-interval": "1000",
            # Else a disk of a machine of tests counts as full.
            "dfs.datanode.du.reserved": "0",
            "dfs.namenode.resource.du.reserved": "0",
        }

    def start(self) -> None:
        run_tool(self.conf, self.version, NAMENODE, "-format", "-nonInteractive")
        self.namenode.start()
        self.datanode.start()
        self.wait()

    def wait(self) -> None:
        """Wait until the NameNode is out of safe mode and has its DataNode."""
        await_that(f"{self.url} is ready", self._is_ready)

    def _is_ready(self) -> bool:
        self.namenode.check_is_alive()
        self.datanode.check_is_alive()
        return bool(self.datanodes()) and not self.is_in_safe_mode

    def datanodes(self) -> int | None:
        """Return how many of them the NameNode takes for alive; None if it does not answer."""
        state = self._bean("FSNamesystemState")
        return None if state is None else int(state["NumLiveDataNodes"])

    def _bean(self, name: str) -> dict[str, Any] | None:
        ask = ask_json if self.kdc is None else self.kdc.ask_json
        found = ask(f"http://{self._web}/jmx?qry=Hadoop:service=NameNode,name={name}")
        beans = (found or {}).get("beans")
        return dict(beans[0]) if beans else None

    def restart_namenode(self) -> None:
        self.namenode.kill()
        self.namenode.start()

    def heal(self) -> None:
        """End every outage that a test has begun."""
        for daemon in (self.namenode, self.datanode):
            if daemon.is_alive:
                daemon.resume()
            else:
                daemon.start()
        await_that("the NameNode answers", lambda: self._bean("NameNodeInfo") is not None)
        if self.is_in_safe_mode:
            self.set_safe_mode(is_on=False)  # which a failed test has set by hand
        self.wait()

    @property
    def is_in_safe_mode(self) -> bool:
        info = self._bean("NameNodeInfo")
        return bool(info and info["Safemode"])

    def set_safe_mode(self, *, is_on: bool) -> None:
        run_tool(self.conf, self.version, ADMIN, "-safemode", "enter" if is_on else "leave")

    def stop(self) -> None:
        self.datanode.kill()
        self.namenode.kill()


@contextlib.contextmanager
def running(hdfs: Hdfs) -> Iterator[Hdfs]:
    """Run it for the block."""
    try:
        hdfs.start()
        yield hdfs
    finally:
        hdfs.stop()
