"""Clusters of the tests: this machine, Livy, EMR Serverless by moto, and Kubernetes."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Mapping
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import tests.airflow_home  # noqa: F401 - before Airflow is imported
from airflow_provider.extensions.emr_serverless.launcher import (
    EMR_SERVERLESS,
    EmrOptions,
    EmrServerlessLauncher,
)
from airflow_provider.extensions.livy.launcher import LIVY, LivyLauncher
from airflow_provider.extensions.spark_application.launcher import (
    SPARK_APPLICATION,
    SparkApplicationLauncher,
)
from airflow_provider.runtime.api.launchers import Application, Handle, LaunchStatus
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.control.spark_submit import SparkSubmitLauncher
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.submissions import SubmissionRecord
from airflow_provider.runtime.storage.local import LocalStorage
from tests.contract.conftest import BUCKET, StoreServer
from tests.contract.emr_user import KEY, SECRET
from tests.contract.spark_operator_server import Applications
from tests.pipes import stdout_of

PROGRAM = Path(__file__).with_name("cluster_program.py")
AT = "2026-01-01T00:00:00.000Z"
ALWAYS = 1_000_000
ROLE = "arn:aws:iam::123456789012:role/spark-stream"


def an_application(exit_code: int | None) -> Application:
    what = "wait" if exit_code is None else str(exit_code)
    return Application(arguments=(what,), intended=SystemClock().now())


class IntendingLauncher(SparkSubmitLauncher):
    """Puts the intent first, as who submits does."""

    def submit(self, application: Application, token: str) -> Handle:
        record = SubmissionRecord(driver_id=token, run_id="r1", submitted=AT, log=None)
        self.run.put_submission(record)
        return super().submit(application, token)


class ThisMachine:
    """Processes of this machine in the place of ``spark-submit``."""

    secrets = ()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = JobDirectory(LocalStorage(str(folder / "job"))).run("r1")

    def open(self) -> IntendingLauncher:
        return IntendingLauncher(
            run=self.run,
            job_dir=str(self.folder / "job"),
            log_file=self.folder / "driver.log",
            command=lambda application: [sys.executable, str(PROGRAM), *application.arguments],
        )

    def application(self, exit_code: int | None) -> Application:
        return an_application(exit_code)

    def runs(self) -> int:
        log = self.folder / "driver.log"
        said = log.read_text().count("the first line") if log.exists() else 0
        tokens = [each.driver_id for each in self.run.submissions()]
        processes = [p for token in tokens if (p := self.run.process_of(token)) is not None]
        # One that is ended as it comes up says nothing; two of one token would both speak.
        return max(said, sum(len(p.identity.processes) > 1 for p in processes))


def livy_launcher(address: str, **connection: Any) -> LivyLauncher:
    """Return a launcher as Airflow makes it of a connection."""
    from airflow.sdk import Connection

    made = Connection(conn_id="livy", conn_type="livy", host=address, **connection)
    return LIVY.open(made, {"entry_point": str(PROGRAM), "runtime": "/no/runtime.zip"}, "livy")


class LivyCluster:
    """A Livy server in a process of its own, which may die and come back."""

    user, secrets = "airflow", ("s3cr3t-of-livy",)

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "batches"
        self.folder.mkdir(parents=True)
        self.port = 0
        self.come_back()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self, password: str | None = None) -> LivyLauncher:
        return livy_launcher(self.url, login=self.user, password=password or self.secrets[0])

    def open_as_stranger(self) -> LivyLauncher:
        return self.open("wr0ng")

    def application(self, exit_code: int | None) -> Application:
        return an_application(exit_code)

    def runs(self) -> int:
        return int(self.ask("/-/started")["started"])

    def lose_reply(self) -> None:
        self.ask("/-/lose")

    def go_away(self) -> None:
        self.process.kill()
        self.process.wait()
        stdout_of(self.process).close()

    def come_back(self) -> None:
        self._serve("tests.contract.livy_server", self.user, self.secrets[0])

    def _serve(self, module: str, *login: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, str(self.folder), str(self.port), *login],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = int(stdout_of(self.process).readline())

    def ask(self, path: str) -> Any:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def stop(self) -> None:
        """End the server, and the processes of batches that are left."""
        if self.process.poll() is None:
            launcher = self.open()
            for batch in launcher._batches():
                launcher._ask("DELETE", f"/batches/{batch.id}", dict[str, Any])
            self.go_away()


def kube_config(url: str, token: str) -> dict[str, Any]:
    """Return a kube config with the address and the login of an API server."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
    }


def spark_application_launcher(
    url: str, token: str, options: Mapping[str, str], extra: Mapping[str, Any] | None = None
) -> SparkApplicationLauncher:
    """Return a launcher as Airflow makes it of a connection."""
    from airflow.sdk import Connection

    login = {"kube_config": json.dumps(kube_config(url, token)), "namespace": "streams"}
    given_extra = json.dumps({**login, **(extra or {})})
    made = Connection(conn_id="kube", conn_type="kubernetes", extra=given_extra)
    given = {"entry_point": str(PROGRAM), "runtime": "/no/runtime.zip", "spark_version": "4.3.0"}
    return SPARK_APPLICATION.open(made, {**given, **options}, "conn_id 'kube'")


class OperatorCluster(LivyCluster):
    """A stand-in for Kubernetes with an operator, in a process of its own.

    Args:
        operator: whose applications are started.
    """

    secrets = ("s3cr3t-of-kubernetes",)

    def __init__(self, folder: Path, operator: str) -> None:
        self.operator = operator
        super().__init__(folder)

    def open(self, password: str | None = None) -> SparkApplicationLauncher:  # type: ignore[override]
        token = password or self.secrets[0]
        return spark_application_launcher(self.url, token, {"operator": self.operator})

    def open_as_stranger(self) -> SparkApplicationLauncher:  # type: ignore[override]
        return self.open("wr0ng")

    def come_back(self) -> None:
        self._serve("tests.contract.spark_operator_server", self.secrets[0])

    def stop(self) -> None:
        """End the server, and the processes of applications that are left."""
        if self.process.poll() is None:
            self.go_away()
        applications = Applications(self.folder)
        for file in self.folder.glob("*/application.json"):
            found = json.loads(file.read_text())
            options = {"preconditions": {"uid": found["metadata"]["uid"]}}
            applications.delete(found["apiVersion"], file.parent.name, options)


def emr_launcher(
    options: dict[str, str], *login: str, extra: dict[str, Any]
) -> EmrServerlessLauncher:
    """Return a launcher as Airflow makes it of a connection, which it finds in the environment."""
    from airflow.sdk import Connection

    keys = dict(zip(("login", "password"), login, strict=False))
    connection = json.dumps({"conn_type": "aws", **keys, "extra": extra})
    conn_id = f"emr_{zlib.crc32(connection.encode())}"
    os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"] = connection
    return EMR_SERVERLESS.open(Connection(conn_id=conn_id, conn_type="aws"), options, "emr")


class EmrCluster:
    """Moto's EMR Serverless and S3, which know one user and check every signature.

    Args:
        server: a server for ``emr``, of which nobody knows anything yet.
    """

    def __init__(self, server: StoreServer) -> None:
        self.server = server
        self.boto3: Any = importlib.import_module("boto3")  # which has no types
        self.keys = self.session(KEY, SECRET)
        self.secrets = (SECRET,)
        self.client("s3", self.keys).create_bucket(
            Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "eu-central-1"}
        )
        self.put("program.py", PROGRAM.read_bytes())
        self.new_application()

    def session(self, key: str, secret: str) -> dict[str, Any]:
        keys = {"aws_access_key_id": key, "aws_secret_access_key": secret}
        return {**keys, "region_name": "eu-central-1"}

    def client(self, service: str, session: dict[str, Any]) -> Any:
        return self.boto3.Session(**session).client(service, endpoint_url=self.server.address)

    def put(self, key: str, data: bytes) -> None:
        self.client("s3", self.keys).put_object(Bucket=BUCKET, Key=key, Body=data)

    def new_application(self) -> None:
        """Begin with an application that has no job run."""
        made = self.client("emr-serverless", self.keys).create_application(
            name="streams", releaseLabel="emr-7.9.0", type="SPARK", clientToken="t"
        )
        self.options = EmrOptions(
            application_id=made["applicationId"],
            execution_role=ROLE,
            entry_point=f"s3://{BUCKET}/program.py",
            runtime=f"s3://{BUCKET}/runtime.zip",
            log_uri=f"s3://{BUCKET}/logs",
        )

    def open(self, secret: str = SECRET, **changes: Any) -> EmrServerlessLauncher:
        extra = {"region_name": "eu-central-1", "endpoint_url": self.server.address}
        return emr_launcher(
            vars(dataclasses.replace(self.options, **changes)), KEY, secret, extra=extra
        )

    def open_as_stranger(self) -> EmrServerlessLauncher:
        return self.open("wr0ng")

    def application(self, exit_code: int | None) -> Application:
        return an_application(exit_code)

    def job_runs(self) -> list[dict[str, Any]]:
        client = self.client("emr-serverless", self.keys)
        with contextlib.suppress(client.exceptions.ResourceNotFoundException):
            return client.list_job_runs(applicationId=self.options.application_id)["jobRuns"]
        return []  # moto does not know an application without one

    def runs(self) -> int:
        return len(self.job_runs())

    def lose_reply(self) -> None:
        self.server.disturb("lost", 1, "POST")

    def go_away(self) -> None:
        self.server.disturb("unavailable", ALWAYS, "GET POST PUT DELETE")

    def come_back(self) -> None:
        self.server.be_calm()

    def end_all(self) -> None:
        self.server.be_calm()
        for run in self.job_runs():
            if run["state"] in {"SUBMITTED", "RUNNING"}:
                asked = {"applicationId": self.options.application_id, "jobRunId": run["id"]}
                self.client("emr-serverless", self.keys).cancel_job_run(**asked)


def serve_emr() -> EmrCluster:
    """Return moto's EMR Serverless in a process of its own."""
    return EmrCluster(StoreServer("emr", f"s3://{BUCKET}/jobs"))


def describe(look: LaunchStatus) -> tuple[str, int | None, str]:
    return look.state.value, look.exit_code, look.reason


__all__ = ["AT", "BUCKET", "PROGRAM", "EmrCluster", "LivyCluster", "ThisMachine", "serve_emr"]
os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
