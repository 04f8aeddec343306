"""Stand-in for the KubernetesExecutor: each task has a PID namespace, which ends with it.

As in a pod the first process is that of the one workload, the kernel kills all others with it, and
a signal to it is the API server's deletion (SIGTERM) or a lost node (SIGKILL).
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

from airflow.executors.base_executor import BaseExecutor

if TYPE_CHECKING:
    from collections.abc import Sequence

UNSHARE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
WORKLOAD = "airflow.sdk.execution_time.execute_workload"


class NamespaceExecutor(BaseExecutor):
    """Starts what the KubernetesExecutor starts in a pod."""

    def start(self) -> None:
        self._pods: dict[Any, subprocess.Popen[bytes]] = {}

    def _process_workloads(self, workload_items: Sequence[Any]) -> None:
        for workload in workload_items:
            command = [sys.executable, "-m", WORKLOAD, "--json-string", workload.model_dump_json()]
            self.queued_tasks.pop(workload.ti.key)
            self.running.add(workload.ti.key)
            self._pods[workload.ti.key] = subprocess.Popen([*UNSHARE, *command])

    def sync(self) -> None:
        for key, pod in list(self._pods.items()):
            if (code := pod.poll()) is None:
                continue
            del self._pods[key]
            if code:
                self.fail(key)
            else:
                self.success(key)

    def end(self) -> None:
        for pod in self._pods.values():
            pod.wait()

    def terminate(self) -> None:
        for pod in self._pods.values():
            pod.kill()
