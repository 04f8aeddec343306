"""Images made of a few files: what is in them otherwise comes from folders of the machine."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

PAUSE = "localhost/pause:1"
SPARK = "localhost/spark:1"
BUSYBOX = "bin/busybox"
# What the entrypoint of Spark's own images does; see its resource-managers/kubernetes.
ENTRYPOINT = r"""#!/bin/bash
set -e
part="$1"
shift
case "$part" in
driver)
    exec "$SPARK_HOME/bin/spark-submit" \
        --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
        --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
        --deploy-mode client "$@"
    ;;
executor)
    mapfile -t options < <(env | grep '^SPARK_JAVA_OPT_' | sort -t_ -k4 -n | cut -d= -f2-)
    exec "$JAVA_HOME/bin/java" "${options[@]}" \
        "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
        -cp "$SPARK_CLASSPATH:$SPARK_HOME/jars/*" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
*)
    exec "$part" "$@"
    ;;
esac
"""
FOLDERS = ("dev", "etc", "opt", "opt/spark", "proc", "root", "sys", "tmp", "usr", "var")
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}


def write_pause(file: Path, busybox: Path) -> None:
    """Write the image of the process that holds a pod's namespaces."""
    layer = _Layer()
    layer.add_folder("bin")
    layer.add_file(BUSYBOX, busybox.read_bytes(), mode=0o755)
    config = {"Entrypoint": [f"/{BUSYBOX}", "sleep", "2147483647"]}
    _write(file, PAUSE, layer.content(), config)


def write_spark(file: Path, environ: Mapping[str, str]) -> None:
    """Write an image that is one of Spark's when ``/usr`` of a machine is mounted."""
    layer = _Layer()
    for name in FOLDERS:
        layer.add_folder(name)
    for name, target in LINKS.items():
        layer.add_link(name, target)
    layer.add_file("etc/passwd", b"root:x:0:0:root:/root:/bin/bash\n")
    layer.add_file("opt/entrypoint.sh", ENTRYPOINT.encode(), mode=0o755)
    variables = [f"{name}={value}" for name, value in environ.items()]
    _write(file, SPARK, layer.content(), {"Entrypoint": ["/opt/entrypoint.sh"], "Env": variables})


class _Layer:
    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._bytes, mode="w")

    def add_folder(self, name: str) -> None:
        entry = tarfile.TarInfo(name)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
        self._tar.addfile(entry)

    def add_link(self, name: str, target: str) -> None:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(entry)

    def add_file(self, name: str, content: bytes, *, mode: int = 0o644) -> None:
        add_bytes(self._tar, name, content, mode=mode)

    def content(self) -> bytes:
        self._tar.close()
        return self._bytes.getvalue()


def add_bytes(tar: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def _write(file: Path, name: str, layer: bytes, config: Mapping[str, Sequence[str]]) -> None:
    """Write an archive as ``docker save`` does."""
    digest = hashlib.sha256(layer).hexdigest()
    about = {
        "architecture": "amd64",
        "os": "linux",
        "config": dict(config),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "tests"}],
    }
    described = json.dumps(about).encode()
    about_name = f"{hashlib.sha256(described).hexdigest()}.json"
    manifest = [{"Config": about_name, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}]
    with tarfile.open(file, "w") as archive:
        add_bytes(archive, about_name, described)
        add_bytes(archive, f"{digest}/layer.tar", layer)
        add_bytes(archive, "manifest.json", json.dumps(manifest).encode())
