"""The contract of launchers on ``spark-submit``'s processes, on EMR Serverless, and on Livy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime.testing.launchers import (
    LauncherContract,
    RemoteLauncherContract,
)
from tests.contract.clusters import (
    PROGRAM,
    ThisMachine,
    an_application,
)
from tests.present import present

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


class TestSparkSubmit(LauncherContract):
    """Processes of this machine."""

    @pytest.fixture
    def case(self, tmp_path):
        return ThisMachine(tmp_path)


class Service:
    """A service as the page's example asks it; its runs are processes of this machine.

    Args:
        folder: where they write.
        is_known: whether it knows who asks.
    """

    class RefusedError(Exception):
        pass

    def __init__(self, folder, started=None, *, is_known=True):
        self.folder, self.is_known = folder, is_known
        self.started: list[dict[str, Any]] = [] if started is None else started
        self.is_away = self.loses = False

    def answers(self):
        if self.is_away:
            raise ConnectionError("nobody listens")
        if not self.is_known:
            raise self.RefusedError("who are you")

    ping = answers

    def start(self, name, file, args, py_files, conf):
        self.answers()
        with (self.folder / f"{len(self.started)}.log").open("wb") as log:
            process = subprocess.Popen([sys.executable, file, *args], stderr=log)
        self.started.append({"id": str(len(self.started)), "name": name, "process": process})
        if self.loses:
            self.loses = False
            raise ConnectionError("the answer was lost")
        return self.started[-1]

    def runs(self):
        self.answers()
        return [self.run(each["id"]) for each in self.started]

    def run(self, number):
        self.answers()
        if int(number) >= len(self.started):
            return None
        code = self.started[int(number)]["process"].poll()
        state = "running" if code is None else "ended"
        return {**self.started[int(number)], "state": state, "exit_code": code}

    def cancel(self, number):
        self.answers()
        self.started[int(number)]["process"].kill()

    def log(self, number):
        self.answers()
        return (self.folder / f"{number}.log").read_text().splitlines()


class ServiceCase:
    secrets = ()

    def __init__(self, folder):
        self.folder, self.service = folder, Service(folder)
        page = (ROOT / "docs" / "internals" / "extend.md").read_text()
        code = re.search(r"```python\n([^`]*class MyLauncher:.*?)```", page, re.DOTALL)
        self.names: dict[str, Any] = {}
        exec(present(code)[1], self.names)  # noqa: S102 - the page's own example

    def open(self, service=None):
        return self.names["MyLauncher"](service or self.service, str(PROGRAM), "/no/runtime.zip")

    def open_as_stranger(self):
        return self.open(Service(self.folder, self.service.started, is_known=False))

    def application(self, exit_code):
        return an_application(exit_code)

    def runs(self):
        return len(self.service.started)

    def lose_reply(self):
        self.service.loses = True

    def go_away(self):
        self.service.is_away = True

    def come_back(self):
        self.service.is_away = False


class TestTheExampleOfThePage(RemoteLauncherContract):
    """What docs/internals/extend.md shows keeps the contract."""

    @pytest.fixture
    def case(self, tmp_path):
        case = ServiceCase(tmp_path)
        yield case
        for each in case.service.started:
            each["process"].kill()
            each["process"].wait()
