"""The side of a run that wants a warm driver: ``run --warm``, and a submission of Airflow's.

A client queues at the pool's socket. A free driver accepts it and says ``free``; only then the
client sends the run, and only its ``go`` gives the run away.

=====================  ============================================================================
a side dies            what the other does
=====================  ============================================================================
client, before "go"    the driver has started nothing, and serves the next client
client, after "go"     the driver ends its attempt, if the request says so; else it continues
driver, before "go"    the client has given nothing away, and starts a driver of its own
driver, after "go"     the client says that the driver is gone: exit code 3, the run can be resumed
pool                   idle drivers end; those with a run continue
=====================  ============================================================================

So a run is never given to two drivers; and if it were, the lease would let one of them in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping  # noqa: TC003 - the type of a field that travels
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from airflow_provider.extensions.warm_drivers.channel import (
    RUNS_SOCKET,
    check_pool_folder,
    check_user,
    receive,
    send,
)
from airflow_provider.extensions.warm_drivers.matching import FixedSettings
from airflow_provider.runtime.base.host import user_folder
from airflow_provider.runtime.base.typed_json import Mismatch, decode, encode
from airflow_provider.runtime.errors import EXIT_RETRY, ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider.runtime.jobdir.run_spec import RunSpec

log = logging.getLogger(__name__)

WAIT_S: Final = 8.0
"""How long a client waits for a free driver: as long as a cold start takes, so that waiting at most
doubles the time of a run (the rent-or-buy rule; Karlin et al., "Competitive snoopy caching", 1988).
"""
_ANSWER_S: Final = 10.0
READY: Final = {"ready": True}
"""Message of a driver that can take the run."""
GO: Final = {"go": True}
"""Message of a client: from now on the run is the driver's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Handover:
    """A run that is handed over: the command, and the environment of its own process.

    Attributes:
        fixed: what the driver must have been started with.
        conf: Spark's settings; those that :attr:`fixed` has are compared, and not set.
        submission: job directory, run id and driver id of a submission, whose exit code the driver
            records; None for a command, whose client waits for it.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    fixed: FixedSettings
    conf: Mapping[str, str]
    submission: tuple[str, str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        return dict(encode(self))

    @classmethod
    def from_dict(cls, raw: Any) -> Handover:
        try:
            return cls(**vars(decode(cls, raw)))
        except Mismatch as problem:
            raise ValueError(f"not a run that is handed over: {problem}") from problem


class WarmRun:
    """A run that a driver has taken, as its client sees it."""

    def __init__(self, channel: socket.socket, pid: int) -> None:
        self._channel = channel
        self.pid = pid

    def signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            send(self._channel, {"signal": number})

    def wait(self) -> int:
        """Return the exit code; :data:`~.errors.EXIT_RETRY` for a driver that was killed."""
        self._channel.settimeout(None)
        with self._channel:
            try:
                answer = receive(self._channel)
            except (OSError, ValueError):
                answer = None
        return int(answer["exit"]) if answer is not None else EXIT_RETRY

    def leave(self) -> None:
        """Let it continue alone."""
        self._channel.close()


def hand_over(
    folder: Path, handover: Handover, files: Sequence[int], *, wait_s: float = WAIT_S
) -> WarmRun | str:
    """Hand a run to the next free driver; return why not, if none takes it."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        check_pool_folder(folder)
        channel.settimeout(wait_s)
        channel.connect(str(folder / RUNS_SOCKET))
        check_user(channel)
        taken = _offer(channel, handover, files)
    except (FileNotFoundError, ConnectionRefusedError):
        taken = f"there is no driver pool in {folder}"
    except TimeoutError:
        taken = f"no warm driver in {folder} was free for {wait_s:.0f} s"
    except (ConfigError, OSError, ValueError) as error:
        taken = str(error)
    except BaseException:
        channel.close()
        raise
    if isinstance(taken, str):
        channel.close()
    return taken


def _offer(channel: socket.socket, handover: Handover, files: Sequence[int]) -> WarmRun | str:
    free = receive(channel)
    if free is None:
        return "the driver has just ended"
    channel.settimeout(_ANSWER_S)
    send(channel, handover.to_dict(), files)
    answer = receive(channel) or {"refused": "it has ended"}
    if answer != READY:
        return f"no warm driver matches: {answer.get('refused')}"
    send(channel, GO)
    return WarmRun(channel, int(free["pid"]))


def run_in_pool(spec: RunSpec, arguments: Sequence[str] | None = None) -> int | None:
    """Run this process's command on a warm driver, and wait for its end.

    Returns:
        The exit code; None when the run must be started cold; the log has the reason.
    """
    handover = Handover(
        arguments=tuple(sys.argv[1:] if arguments is None else arguments),
        environment=dict(os.environ),
        folder=str(Path.cwd()),
        fixed=FixedSettings.of(spec.master, spec.conf, os.environ),
        conf=spec.conf,
    )
    sys.stdout.flush()
    taken = hand_over(user_folder(), handover, (0, 1, 2))
    if isinstance(taken, str):
        log.warning("no warm driver: %s; starting one", taken)
        return None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda caught, _: taken.signal(caught))
    return taken.wait()


def submit_to_pool(
    arguments: Sequence[str],
    submission: tuple[str, str, str],
    output: BinaryIO,
    *,
    master: str,
    conf: Mapping[str, str],
    environment: Mapping[str, str],
) -> str | None:
    """Hand a submitted run to a warm driver, which records its end; return why not, or None."""
    handover = Handover(
        arguments=tuple(arguments),
        environment=environment,
        folder=str(Path.cwd()),
        fixed=FixedSettings.of(master, conf, environment),
        conf=conf,
        submission=submission,
    )
    with Path(os.devnull).open("rb") as nothing:
        files = (nothing.fileno(), output.fileno(), output.fileno())
        taken = hand_over(user_folder(), handover, files)
    if isinstance(taken, str):
        return taken
    taken.leave()
    return None
