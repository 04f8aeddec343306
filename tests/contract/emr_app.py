"""Amazon EMR Serverless as moto answers for it, with what moto lacks: job runs that run.

moto keeps job runs, and says of each that it has succeeded; it does not honour client tokens. Here a
job run is a process: its entry point is read from moto's S3, and its log and its end are put where the
service puts them.
"""

from __future__ import annotations

import contextlib
import gzip
import hmac
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.emrserverless import models
from moto.s3.models import s3_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.wrappers import Request, Response

from tests.contract.emr_user import KEY, SECRET

DETAILS = (
    "Job failed, please check complete logs in configured logging destination. ExitCode: {}. "
    "Last few exceptions: {}"
)


own_address: dict[str, str] = {}


def app() -> Any:
    """Return moto's application, behind a check of signatures, and let what it is given run."""
    models.JOB_STATUS = "SUBMITTED"
    threading.Thread(target=run_all, daemon=True).start()
    inner = DomainDispatcherApplication(create_backend_app)

    def guarded(environ: dict[str, Any], start_response: Any) -> Any:
        request = Request(environ)
        own_address["AWS_ENDPOINT_URL"] = request.host_url.rstrip("/")
        is_user = is_let_in(request)
        environ["wsgi.input"] = io.BytesIO(request.get_data())
        if is_user:
            return inner(environ, start_response)
        said = {"message": "The security token included in the request is invalid."}
        headers = {"x-amzn-ErrorType": "UnrecognizedClientException"}
        return Response(json.dumps(said), 403, headers)(environ, start_response)

    return guarded


def is_let_in(request: Request) -> bool:
    """Tell whether a request to the service has its user's signature; moto cannot check those."""
    given = request.headers.get("Authorization", "")
    if "/emr-serverless/" not in given:
        return True
    scope, signed, signature = re.findall(r"(?:Credential|SignedHeaders|Signature)=([^,]+)", given)
    key, _, region, service, _ = scope.split("/")
    headers = {name: request.headers[name] for name in signed.split(";")}
    query = request.environ["QUERY_STRING"]  # as it was signed
    url = f"{request.base_url}?{query}" if query else request.base_url
    asked = AWSRequest(request.method, url, headers, request.get_data())
    asked.context["timestamp"] = request.headers["X-Amz-Date"]
    auth = SigV4Auth(Credentials(KEY, SECRET), service, region)
    canonical = auth.canonical_request(asked)
    expected = auth.signature(auth.string_to_sign(asked, canonical), asked)
    return key == KEY and hmac.compare_digest(expected, signature)


def run_all() -> None:
    """Start a thread for each job run that comes."""
    seen: set[str] = set()
    while True:
        backends = models.emrserverless_backends[DEFAULT_ACCOUNT_ID]
        for backend in list(backends.values()):
            for run in [run for runs in list(backend.job_runs.values()) for run in list(runs)]:
                if run.id not in seen:
                    seen.add(run.id)
                    threading.Thread(target=run_one, args=[run], daemon=True).start()
        time.sleep(0.02)


def run_one(run: Any) -> None:
    asked = run.job_driver["sparkSubmit"]
    location = urlsplit(asked["entryPoint"])
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.py"
        program.write_bytes(store().get_object(location.netloc, location.path.lstrip("/")).value)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        environment |= {
            **own_address,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "eu-central-1",
        }
        with (Path(folder) / "err").open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, str(program), *asked["entryPointArguments"]],
                stdin=subprocess.DEVNULL,  # that of the server says when it ends
                stdout=err,
                stderr=err,
                env=environment,
            )
        run.state = "RUNNING" if run.state == "SUBMITTED" else run.state
        while process.poll() is None:
            if run.state == "CANCELLED":
                process.kill()
            time.sleep(0.02)
        log = (Path(folder) / "err").read_bytes()
    put_log(run, log)
    if run.state == "RUNNING":
        last = log.decode().splitlines()[-1]
        run.state_details = DETAILS.format(process.returncode, last) if process.returncode else ""
        run.state = "FAILED" if process.returncode else "SUCCESS"


def put_log(run: Any, log: bytes) -> None:
    """Put Python's output where Spark's Python runner writes both of its streams."""
    where = (run.configuration_overrides or {}).get("monitoringConfiguration", {})
    address = (where.get("s3MonitoringConfiguration") or {}).get("logUri")
    if address:
        location = urlsplit(address)
        folder = f"{location.path.strip('/')}/applications/{run.application_id}/jobs/{run.id}"
        with contextlib.suppress(Exception):  # a bucket that is gone
            key = f"{folder.lstrip('/')}/SPARK_DRIVER/stdout.gz"
            store().put_object(location.netloc, key, gzip.compress(log))


def store() -> Any:
    return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
