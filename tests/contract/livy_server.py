"""A Livy server that starts real processes, loses answers, dies, and comes back.

``python -m tests.contract.livy_server FOLDER PORT USER PASSWORD`` prints its port and serves until it
is killed. It answers as Livy's documentation says: batches with unique names, of which the ended ones
stay for a while, and their logs, with headings. What it knows is in *FOLDER*, so that it goes on after
its own death, as a server with recovery does; the processes outlive it.

``/-/`` is the way to disturb it (``lose``) and to see what it has started (``started``).
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psutil

RUN = '"$@" >out 2>err; echo $? >code.tmp; mv code.tmp code'
INTERNAL = frozenset({"pid"})


class Batches:
    """The batches, each a folder: ``batch.json``, and what its process has left.

    Args:
        folder: where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.losing = 0

    def all(self) -> list[dict[str, Any]]:
        found = [json.loads(path.read_text()) for path in self.folder.glob("*/batch.json")]
        return [self.view(batch) for batch in sorted(found, key=lambda batch: batch["id"])]

    def started(self) -> int:
        return len(list(self.folder.glob("*")))

    def make(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Start a batch; None when one of this name is there."""
        if any(batch["name"] == asked.get("name") for batch in self.all()):
            return None
        number = self.started()
        location = self.folder / str(number)
        location.mkdir()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        if Path(asked["file"]).name == "spark_stream_driver.py":  # as a cluster that has only Spark
            environment.pop("PYTHONPATH")
            programs = [str(Path(sys.executable).parent), environment["PATH"]]
            environment["PATH"] = os.pathsep.join(programs)
            conf = [part for pair in asked["conf"].items() for part in ("--conf", "=".join(pair))]
            spark = ["spark-submit", "--master", "local[2]", *conf]
            program = [*spark, "--py-files", ",".join(asked["pyFiles"]), asked["file"]]
        else:
            program = [sys.executable, asked["file"]]
        command = ["sh", "-c", RUN, "sh", *program, *asked["args"]]
        process = subprocess.Popen(command, cwd=location, env=environment, start_new_session=True)
        threading.Thread(target=process.wait, daemon=True).start()
        batch = {"id": number, "name": asked.get("name"), "asked": asked, "pid": process.pid}
        (location / "batch.json").write_text(json.dumps(batch))
        return self.view(batch)

    def view(self, batch: dict[str, Any]) -> dict[str, Any]:
        code = self.folder / str(batch["id"]) / "code"
        deadline = time.monotonic() + 2
        while not (code.exists() or self._is_at_work(batch)) and time.monotonic() < deadline:
            time.sleep(0.01)  # its shell has yet to start it, or to write how it has ended
        state = "running"
        if code.exists():
            state = "success" if code.read_text().strip() == "0" else "dead"
        shown = {"id": batch["id"], "name": batch["name"], "state": state, "owner": None}
        return {**shown, "proxyUser": None, "appId": None, "appInfo": {}, "log": []}

    @staticmethod
    def _is_at_work(batch: dict[str, Any]) -> bool:
        try:
            children = psutil.Process(batch["pid"]).children()
            return any(child.status() != psutil.STATUS_ZOMBIE for child in children)
        except psutil.NoSuchProcess:
            return False

    def remove(self, number: int) -> None:
        """End the batch's processes, and forget it."""
        file = self.folder / str(number) / "batch.json"
        batch = json.loads(file.read_text())
        if self.view(batch)["state"] == "running":
            os.killpg(batch["pid"], signal.SIGKILL)
        file.unlink()

    def log(self, number: int) -> list[str]:
        location = self.folder / str(number)
        out, err = ((location / n).read_text(errors="replace").splitlines() for n in ("out", "err"))
        return ["stdout: ", *out, "\nstderr: ", *err, "\nYARN Diagnostics: "]


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    batches: Batches
    authorization: str

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_DELETE(self) -> None:
        self.answer()

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        with self.batches.lock:
            if not self.path.startswith("/-/"):
                is_let_in = self.headers.get("Authorization") == self.authorization
                status, answer = self.batch(body) if is_let_in else (401, {"msg": "who are you"})
            else:
                status, answer = self.control()
            is_lost = self.command == "POST" and self.path == "/batches" and self.batches.losing
        if is_lost:
            self.batches.losing -= 1
            self.close_connection = True
            return
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if "gzip" in self.headers.get("Accept-Encoding", ""):  # as Livy's own server answers
            text = gzip.compress(text)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def control(self) -> tuple[int, Any]:
        if self.path == "/-/lose":
            self.batches.losing += 1
        return 200, {"started": self.batches.started()}

    def batch(self, body: Any) -> tuple[int, Any]:
        asked = urlsplit(self.path)
        query = {name: int(values[0]) for name, values in parse_qs(asked.query).items()}
        _, root, *rest = asked.path.split("/")
        if root != "batches":
            return 404, {"msg": "no such resource"}
        if not rest and self.command == "POST":
            made = self.batches.make(body)
            return (
                (201, made) if made else (400, {"msg": f"Duplicate session name: {body['name']}"})
            )
        found = self.batches.all()
        if not rest:
            begin = query.get("from", 0)
            page = found[begin : begin + query.get("size", 20)]
            return 200, {"from": begin, "total": len(found), "sessions": page}
        number = int(rest[0])
        one = next((batch for batch in found if batch["id"] == number), None)
        return self.of_one(one, query, is_log=rest[1:] == ["log"])

    def of_one(self, one: Any, query: dict[str, int], *, is_log: bool) -> tuple[int, Any]:
        if one is None:
            return 404, {"msg": "Session not found."}
        number = one["id"]
        if self.command == "DELETE":
            self.batches.remove(number)
            return 200, {"msg": "deleted"}
        if is_log:
            return 200, self.log_part(number, query)
        return 200, one

    def log_part(self, number: int, query: dict[str, int]) -> dict[str, Any]:
        lines = self.batches.log(number)
        size, begin = query.get("size", 100), query.get("from", -1)
        if begin < 0:
            begin = max(0, len(lines) - size)
        shown = lines[begin : begin + size]
        return {"id": number, "from": min(begin, len(lines)), "total": len(lines), "log": shown}

    def log_message(self, *_args: Any) -> None:
        pass


def main() -> None:
    folder, port, user, password = sys.argv[1:]
    Handler.batches = Batches(Path(folder))
    Handler.authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
