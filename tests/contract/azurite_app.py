"""Azurite, Microsoft's own emulator of Azure Blob Storage, behind an app that passes requests on.

Azurite is a package of npm. It is installed once, at the version that is named here, into
``.work``; that needs npm, of Node.js 20 or newer, and its registry as the machine has it configured.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.contract.forwarding_app import OF_ONE_CONNECTION, Forwarding

VERSION = "3.35.0"
ROOT = Path(__file__).parents[2]
INSTALLED = ROOT / ".work" / f"azurite-{VERSION}"
PROGRAM = INSTALLED / "node_modules" / ".bin" / "azurite-blob"


class NoAzuriteError(Exception):
    """One line that says what is missing and what to do about it."""


def install() -> None:
    """Install it, unless it is; of processes that do it at once one puts it in place."""
    if PROGRAM.exists():
        return
    npm = shutil.which("npm")
    if npm is None:
        raise NoAzuriteError(
            "there is no npm, with which Azurite is installed: install Node.js 20 or newer, or leave "
            "these tests out with ARGS=\"-k 'not azurite'\""
        )
    INSTALLED.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=INSTALLED.parent) as folder:
        options = ["--prefix", folder, "--no-audit", "--no-fund", "--ignore-scripts"]
        done = subprocess.run(
            [npm, "install", *options, f"azurite@{VERSION}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = done.stderr.strip().splitlines()[-1:]
            raise NoAzuriteError(
                f"npm could not install azurite {VERSION} ({said}); try again, or see npm's log"
            )
        if not PROGRAM.exists():
            os.replace(folder, INSTALLED)
            Path(folder).mkdir()  # for who removes it


class App(Forwarding):
    """Azurite, and the way to it."""

    left_out = OF_ONE_CONNECTION | {"host"}  # which no signature covers

    def __init__(self) -> None:
        install()
        key = os.environ["AZURITE_KEY"]
        environment = {**os.environ, "AZURITE_ACCOUNTS": f"account:{key}"}
        command = [str(PROGRAM), "--blobHost", "127.0.0.1", "--blobPort", "0"]
        self._process = subprocess.Popen(
            [
                *command,
                "--inMemoryPersistence",
                "--skipApiVersionCheck",
                "--silent",
                "--disableTelemetry",
            ],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        super().__init__(self._await_port())

    def _await_port(self) -> int:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = re.search(r"listens on http://127\.0\.0\.1:(\d+)", line)
            if found:
                return int(found[1])
        raise NoAzuriteError(f"Azurite ended with {self._process.wait(10)}")

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(10)
