"""A node: containerd, a kubelet, and the bridge that its pods share with this machine."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pyspark

from tests.real.hadoop.daemons import java_home
from tests.real.kubernetes.images import write_pause, write_spark
from tests.real.kubernetes.programs import debian, path_of_node, program
from tests.real.kubernetes.servers import Server, run
from tests.real.ports import free_ports

NODE = "node-of-tests"
CGROUPS = Path("/sys/fs/cgroup")
# What a kubelet, or the bridge's plugin, sets for the whole machine.
KERNEL = (
    *("kernel/keys/root_maxbytes", "kernel/keys/root_maxkeys", "kernel/panic"),
    *("kernel/panic_on_oops", "net/ipv4/ip_forward", "vm/overcommit_memory", "vm/panic_on_oom"),
)
BRIDGE = "k8s-tests"
ADDRESS = "10.244.77.1"  # of this machine on the bridge: pods reach it there
SUBNET = "10.244.77.0/24"
SETTINGS = Path("/proc/sys")
MODULE = "io.containerd.grpc.v1.cri"
CONTAINERD = """\
version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{socket}"
[plugins."{module}"]
  sandbox_image = "localhost/pause:1"
  stream_server_address = "127.0.0.1"
  disable_apparmor = true
  restrict_oom_score_adj = true
[plugins."{module}".cni]
  bin_dir = "{debian}/usr/lib/cni"
  conf_dir = "{folder}/cni"
[plugins."{module}".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."{module}".containerd.runtimes.runc.options]
  BinaryName = "{debian}/usr/sbin/runc"
"""


class Node:
    """The one node of a cluster; its pods see folders of this machine.

    Args:
        folder: of what it writes; short, as sockets' names are.
        config: a kube config that may do all.
        authority: of the API server's certificate, which reads logs with it.
    """

    def __init__(self, folder: Path, config: Path, authority: Path) -> None:
        self._folder, self._config, self._authority = folder, config, authority
        folder.mkdir(parents=True, exist_ok=True)
        self._socket = folder / "containerd.sock"
        self._kernel = {file: file.read_text() for file in map(SETTINGS.joinpath, KERNEL)}
        self._write_containerd()
        self._write_kubelet()
        environ = {"PATH": path_of_node()}
        self.containerd = Server(
            "containerd",
            folder,
            debian() / "usr/bin/containerd",
            {"config": folder / "containerd.toml"},
            environ=environ,
        )
        self.kubelet = Server(
            "kubelet", folder, program("kubelet"), self._options(), environ=environ
        )

    def _write_containerd(self) -> None:
        settings = CONTAINERD.format(
            folder=self._folder, socket=self._socket, module=MODULE, debian=debian()
        )
        (self._folder / "containerd.toml").write_text(settings)
        addresses = {
            "type": "host-local",
            "ranges": [[{"subnet": SUBNET}]],
            "dataDir": str(self._folder / "addresses"),
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "ipam": addresses}
        network = {"cniVersion": "0.4.0", "name": "tests", "plugins": [bridge]}
        (self._folder / "cni").mkdir()
        (self._folder / "cni" / "tests.conflist").write_text(json.dumps(network))

    def _write_kubelet(self) -> None:
        port, health = free_ports(2)
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": ADDRESS,
            "port": port,
            "healthzPort": health,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(self._authority)},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": "/",
            "failSwapOn": False,
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "podLogsDir": str(self._folder / "logs"),
            "resolvConf": "",
            "makeIPTablesUtilChains": False,
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1Gi"},
            "imageMaximumGCAge": "0s",
            "imageGCHighThresholdPercent": 100,
            "nodeStatusUpdateFrequency": "1s",
            "nodeStatusReportFrequency": "2s",
            "syncFrequency": "5s",
            "maxPods": 60,
            "localStorageCapacityIsolation": False,
        }
        (self._folder / "kubelet.json").write_text(json.dumps(settings))

    def _options(self) -> dict[str, object]:
        return {
            "config": self._folder / "kubelet.json",
            "kubeconfig": self._config,
            "hostname-override": NODE,
            "node-ip": ADDRESS,
            "root-dir": self._folder / "kubelet",
            "cert-dir": self._folder / "certificates",
        }

    def start(self) -> None:
        self.start_containerd()
        self.kubelet.start()

    def start_containerd(self) -> None:
        """Start it with the images that there are."""
        self.containerd.start()
        self.containerd.await_ready(self._answers)
        pause, spark = self._folder / "pause.tar", self._folder / "spark.tar"
        write_pause(pause, debian() / "bin/busybox")
        write_spark(spark, image_environment())
        for image in (pause, spark):
            self.ctr("images", "import", str(image))

    def _answers(self) -> bool:
        with contextlib.suppress(AssertionError):
            self.ctr("version")
            return True
        return False

    def ctr(self, *arguments: str) -> str:
        tool = str(debian() / "usr/bin/ctr")
        return run([tool, "--address", str(self._socket), "--namespace", "k8s.io", *arguments])

    def tasks(self) -> list[str]:
        """Return the ids of containers that run."""
        lines = self.ctr("tasks", "ls").splitlines()[1:]
        return [line.split()[0] for line in lines if "RUNNING" in line]

    def log_of(self, uid: str) -> str:
        """Return what the containers of a pod have written."""
        files = sorted((self._folder / "logs").glob(f"*_{uid}/*/*.log"))
        return "\n".join(file.read_text(errors="replace") for file in files)

    def stop(self) -> None:
        """End all that it runs; leave no mount, no bridge, and the kernel's settings as before."""
        self.kubelet.kill()
        for process in self._shims():
            with contextlib.suppress(psutil.Error):
                for each in [*process.children(recursive=True), process]:
                    each.kill()
        self.containerd.kill()
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        for place in reversed([line.split()[1] for line in mounts]):
            if place.startswith(f"{self._folder}/"):
                run(["umount", "--lazy", place])
        if Path(f"/sys/class/net/{BRIDGE}").exists():
            run(["ip", "link", "delete", BRIDGE])

        _remove_cgroups()
        for file, value in self._kernel.items():
            file.write_text(value)

    def _shims(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                is_shim = bool(words) and "containerd-shim" in words[0]
                if is_shim and str(self._socket) in words:
                    found.append(process)
        return found


def make_bridge() -> None:
    """Make the bridge with the machine's address, on which the API server listens."""
    if not Path(f"/sys/class/net/{BRIDGE}").exists():
        run(["ip", "link", "add", BRIDGE, "type", "bridge"])
        run(["ip", "address", "add", f"{ADDRESS}/24", "dev", BRIDGE])
        run(["ip", "link", "set", BRIDGE, "up"])


def _remove_cgroups() -> None:
    for top in CGROUPS.glob("*/kubepods"):
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):  # of a process that is about to end
                Path(folder).rmdir()


def image_environment() -> Mapping[str, str]:
    """Return the variables of the image of Spark."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "JAVA_HOME": java_home(),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def shared_folders(*more: Path) -> list[str]:
    """Return the folders of this machine that a pod sees: Java, Python, Spark, and *more*."""
    folders = {
        "/usr",
        "/etc",
        str(Path(sys.prefix).resolve()),
        sys.prefix,
        str(Path(sys.base_prefix).resolve()),
        *map(str, more),
    }
    return sorted(each for each in folders if not _is_below(each, folders - {each}))


def _is_below(folder: str, others: set[str]) -> bool:
    return any(os.path.commonpath([folder, other]) == other for other in others)
