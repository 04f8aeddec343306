"""A package from outside: a launcher, a command, tabs, and a job with a sink of its own."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from airflow_provider.hooks.api import Link, Section, Table
from airflow_provider.runtime.api.kit.job_records import directory_at, newest_run
from airflow_provider.runtime.api.launchers import Handle, LaunchState, LaunchStatus, LogPart
from airflow_provider.runtime.api.sinks import Committable, Dataset, Staged

api_version = 1


# --- a launcher ---------------------------------------------------------------------------------


# The shell passes the signal on and outlives the driver, because it records the exit code.
SHELL = """
"$@" > "$0.log" 2>&1 &
trap "kill $!" TERM
echo $$ > "$0.pid.new" && mv "$0.pid.new" "$0.pid"
wait $!; code=$?
while kill -0 $! 2> /dev/null; do wait $!; code=$?; done
echo $code > "$0.code.new" && mv "$0.code.new" "$0.code"
"""
DRIVER = (sys.executable, "-m", "airflow_provider.runtime.cli")


@dataclasses.dataclass(frozen=True)
class ProcessOptions:
    """Options of the launcher: the folder of its logs and process ids."""

    folder: str


class ProcessLauncher:
    """Starts each driver as a process of this machine; its token names its files."""

    kind = "processes"

    def __init__(self, options: ProcessOptions, command=DRIVER) -> None:
        self._folder, self._command = Path(options.folder), command

    def check(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def submit(self, application, token):
        handle = Handle(driver_id=token, launcher=self.kind, id=token)
        try:
            (self._folder / f"{token}.began").open("x").close()
        except FileExistsError:
            return handle
        location = str(self._folder / token)
        driver = [*self._command, *application.arguments]
        shell = subprocess.Popen(["sh", "-c", SHELL, location, *driver], start_new_session=True)
        # Nobody else waits for it, and a process that has ended must not stay.
        threading.Thread(target=shell.wait, daemon=True).start()
        return handle

    def poll(self, handle):
        code = self._folder / f"{handle.id}.code"
        if code.exists() and (text := code.read_text().strip()):
            return LaunchStatus(LaunchState.ENDED, int(text))
        if (self._folder / f"{handle.id}.pid").exists():
            return LaunchStatus(LaunchState.RUNNING)
        began = (self._folder / f"{handle.id}.began").exists()
        return LaunchStatus(LaunchState.QUEUED if began else LaunchState.GONE)

    def end(self, handle):
        pid = self._folder / f"{handle.id}.pid"
        if pid.exists() and not self.poll(handle).is_over:
            os.kill(int(pid.read_text()), signal.SIGTERM)

    def log(self, handle, offset=0):
        log = self._folder / f"{handle.id}.log"
        data = log.read_bytes() if log.exists() else b""
        lines = data[offset:].decode(errors="replace").splitlines()
        return LogPart(tuple(lines), len(data))


class ProcessKind:
    """The kind, as the entry point names it."""

    api_version = api_version
    conn_types = ("processes",)
    options = ProcessOptions
    is_experimental = False
    reads_local_paths = True

    def open(self, connection, options, named):
        return ProcessLauncher(ProcessOptions(**options))


PROCESSES = ProcessKind()


# --- a command ----------------------------------------------------------------------------------


def add_commands(commands, add):
    """Add ``spark-stream outputs JOB_DIR``."""
    outputs = add(commands, "outputs", _outputs, "list what the newest run of a job has written")
    outputs.add_argument("job_dir", metavar="JOB_DIR")


def _outputs(arguments):
    directory = directory_at(arguments.job_dir)
    run = newest_run(directory)
    final = directory.run(run.run_id).final() if run is not None else None
    if final is None:
        print("no run has ended")
        return 0
    for name in final.queries:
        print(f"{final.run_id}: {name}, {final.rows_read} rows read, {final.outcome}")
    return 0


# --- tabs of the page ---------------------------------------------------------------------------


class Locations:
    """Lists the runs of a job."""

    api_version = api_version
    title = "Locations"

    def concerns(self, job_dir):
        return newest_run(directory_at(job_dir)) is not None

    def read(self, job_dir):
        run = newest_run(directory_at(job_dir))
        if run is None:  # its records were removed meanwhile
            return []
        rows = [(run.run_id, Link("open", "https://example.org/runs"))]
        return [Section("Runs", facts={"Newest": run.run_id}, table=Table(("Run", "Link"), rows))]


class Broken(Locations):
    """Fails wherever it is called."""

    title = "Broken"

    def concerns(self, job_dir):
        raise RuntimeError("first line\nsecond line")

    def read(self, job_dir):
        return [Section(facts={"not a number": float("nan")})]


LOCATIONS, BROKEN = Locations(), Broken()


# --- a sink, and a job that uses it -------------------------------------------------------------


class LinesSink:
    """Writes an epoch as one file of JSON lines, which takes its name when it is committed.

    Args:
        folder: where the files are.
    """

    api_version = 1

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self.name = f"lines:{folder}"
        self.location = folder

    def check(self, df, output_mode):
        self._folder.mkdir(parents=True, exist_ok=True)

    def _staged(self, epoch):
        return self._folder / f".{epoch.query_id}-{epoch.epoch}-{epoch.token}"

    def stage(self, df, epoch):
        rows = [row.asDict() for row in df.collect()]
        path = self._staged(epoch)
        path.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))
        return Staged(rows=len(rows), data={"staged": path.name})

    def commit(self, committable: Committable, fence):
        staged = self._folder / committable.data["staged"]
        if staged.exists():
            fence.check()
            staged.rename(self._folder / f"{committable.epoch.epoch:05}.jsonl")

    def abort(self, committable):
        (self._folder / committable.data["staged"]).unlink(missing_ok=True)

    def recover(self, query_id, is_garbage, fence):
        """Leave what other drivers have staged: no reader reads hidden files."""

    def datasets(self):
        return [Dataset("file", self.location)]


def letters(ctx):
    """Write a bounded folder of JSON through the sink."""
    rows = ctx.read(
        "letters", format="json", path=ctx.params["input"], schema="letter string", bounded=True
    )
    ctx.write("out", rows, to=LinesSink(ctx.params["output"]))
