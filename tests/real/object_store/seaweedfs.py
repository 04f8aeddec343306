"""SeaweedFS, a server with S3's protocol, in a process of its own that can be killed and paused."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import boto3

from tests.real.fetching import jars_of, program_of
from tests.real.ports import free_ports

HERE = Path(__file__).parent
PACKAGE = "github.com/seaweedfs/seaweedfs/weed"
START_S = 60.0
BUCKET = "bucket"
REGION = "us-east-1"
ADMIN, JOBS = ("admin", "secret of the admin"), ("jobs", "secret of the jobs")
RIGHTS = ("Read", "Write", "List", "Tagging")


class SeaweedFS:
    """One server with all its parts: where objects are, what they are, and S3's protocol.

    Attributes:
        port: of S3's protocol.
    """

    def __init__(self, folder: Path) -> None:
        self._program = program_of(HERE / "go.mod", PACKAGE)
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        parts = ("master", "volume", "filer", "s3")
        ports = free_ports(2 * len(parts))
        self._ports = {
            **{f"{part}.port": port for part, port in zip(parts, ports[::2], strict=True)},
            **{f"{part}.port.grpc": port for part, port in zip(parts, ports[1::2], strict=True)},
        }
        self.port = self._ports["s3.port"]
        self._identities = folder / "identities.json"
        self._identities.write_text(
            json.dumps(
                {
                    "identities": [
                        _identity("admin", ADMIN, ["Admin"]),
                        _identity("jobs", JOBS, RIGHTS),
                    ]
                }
            )
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, also again with what it had; return when it answers."""
        options = {
            "dir": str(self._folder),
            "ip": "127.0.0.1",
            "ip.bind": "127.0.0.1",
            "filer": "true",
            "s3": "true",
            "s3.config": str(self._identities),
            "s3.autoCreateBucket": "false",
            "s3.port.iceberg": "0",
            "s3.port.lance": "0",
            "master.telemetry": "false",
            "master.volumeSizeLimitMB": "256",
            "volume.max": "40",
            "volume.preStopSeconds": "0",
            **self._ports,
        }
        arguments = [f"-{name}={value}" for name, value in options.items()]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "-logtostderr", "server", *arguments],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**os.environ, "HOME": str(self._folder)},
            )
        self._await_port()

    def _await_port(self) -> None:
        deadline = time.monotonic() + START_S
        while True:
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self._process is not None
            assert self._process.poll() is None, self.log[-3000:]
            assert time.monotonic() < deadline, self.log[-3000:]
            time.sleep(0.05)

    def create_bucket(self, name: str) -> None:
        """Create a bucket, which its users may not."""
        keys = dict(zip(("aws_access_key_id", "aws_secret_access_key"), ADMIN, strict=True))
        client = boto3.client("s3", endpoint_url=self.address, region_name=REGION, **keys)
        client.create_bucket(Bucket=name)

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def pause(self) -> None:
        """Let it answer nothing, and refuse nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process as a machine does that fails."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
            self._process = None

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)


def _identity(name: str, keys: tuple[str, str], actions: Sequence[str]) -> dict[str, object]:
    credentials = [{"accessKey": keys[0], "secretKey": keys[1]}]
    return {"name": name, "credentials": credentials, "actions": list(actions)}


def environment_of(address: str) -> dict[str, str]:
    """Return how every process finds a server at this address."""
    return {
        "AWS_ACCESS_KEY_ID": JOBS[0],
        "AWS_SECRET_ACCESS_KEY": JOBS[1],
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL": address,
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def spark_conf() -> dict[str, str]:
    """Return the settings with which Spark reaches it: the rest is in its environment."""
    jars = ",".join(map(str, jars_of(HERE / "pom.xml")))
    return {"spark.jars": jars, "spark.hadoop.fs.s3a.path.style.access": "true"}
