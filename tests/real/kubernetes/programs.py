"""Programs of a node of Kubernetes: Go's programs, Debian's containerd, runc and CNI plugins."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from tests.real.fetching import debian_packages, program_of

HERE = Path(__file__).parent
MAJOR, MINOR, PATCH = "1", "34", "4"  # as go.mod has it
VERSION = f"v{MAJOR}.{MINOR}.{PATCH}"
MODULE = HERE / "go.mod"
DEBIAN = HERE / "debian.txt"
# Such as kubelet and scheduler compare; without them each calls itself v0.0.0.
STRINGS = {
    f"k8s.io/component-base/version.{name}": value
    for name, value in {
        "gitVersion": VERSION,
        "gitMajor": MAJOR,
        "gitMinor": MINOR,
    }.items()
}
PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    **{
        name: f"k8s.io/kubernetes/cmd/{name}"
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
    },
}


@functools.cache
def program(name: str) -> Path:
    """Return etcd, or a part of Kubernetes; without Go or its registry the test is skipped."""
    return program_of(MODULE, PACKAGES[name], strings=STRINGS, is_static=True)


@functools.cache
def debian() -> Path:
    """Return the folder with Debian's packages; nothing of them is installed."""
    return debian_packages(DEBIAN)


def path_of_node() -> str:
    """Return the PATH on which containerd finds its shim, and the shim runc."""
    root = debian()
    found = [str(root / part) for part in ("usr/bin", "usr/sbin", "sbin", "bin")]
    return os.pathsep.join([*found, os.environ.get("PATH", os.defpath)])
