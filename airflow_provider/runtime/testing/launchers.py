"""The contract of a launcher, as tests: for one of your own, subclass `LauncherContract`.

::

    class TestMyLauncher(RemoteLauncherContract):
        @pytest.fixture
        def case(self):
            return MyCase()     # see LauncherCase and RemoteCase

A case starts small programs on the real cluster, or on a server that starts real processes. The
suite waits for what has to happen, with a limit. It needs ``pytest``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Protocol
from uuid import uuid4

import pytest

from airflow_provider.runtime.api.launchers import (
    Application,
    Handle,
    Launcher,
    LaunchState,
    LaunchStatus,
)
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.errors import ConfigError, LauncherAwayError
from airflow_provider.runtime.jobdir.submissions import HandleRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LINES: Final = ("the first line", "the last line")
"""What the program of a case writes to its standard error, at its begin."""
_DEADLINE_S: Final = 60.0
_POLL_S: Final = 0.05
_TWICE: Final = 2


class LauncherCase(Protocol):
    """A cluster for one test.

    Attributes:
        secrets: texts with which the launcher logs in, and which must never be shown.
    """

    secrets: Sequence[str]

    def open(self) -> Launcher:
        """Return a new launcher object, as another process would make one."""

    def application(self, exit_code: int | None) -> Application:
        """Return a program that writes :data:`LINES`.

        Args:
            exit_code: with which it ends then; if it is not 0, it writes ``spark-stream: exit code
                N`` first, as the application does. None: it runs until it is ended.
        """

    def runs(self) -> int:
        """Return how many runs the cluster has started, as it knows itself."""


class RemoteCase(LauncherCase, Protocol):
    """A cluster that answers over a network."""

    def lose_reply(self) -> None:
        """Let the next submission take effect, and its answer get lost."""

    def go_away(self) -> None:
        """Make the cluster unreachable."""

    def come_back(self) -> None:
        """Make the cluster reachable again."""

    def open_as_stranger(self) -> Launcher:
        """Return a launcher whose credentials are wrong."""


def until(
    launcher: Launcher, handle: Handle, is_it: Callable[[LaunchStatus], bool]
) -> LaunchStatus:
    """Return the first status for which *is_it* holds, within a minute."""
    clock = SystemClock()
    deadline = clock.monotonic() + _DEADLINE_S
    while not is_it(status := launcher.poll(handle)):
        assert clock.monotonic() < deadline, status
        clock.sleep(_POLL_S)
    return status


def a_token() -> str:
    """Return a new token."""
    return uuid4().hex


class LauncherContract:
    """The contract: a subclass gives a fixture ``case``."""

    def test_a_check_starts_nothing(self, case: LauncherCase) -> None:
        """A launcher that could start a driver says so, and has started none."""
        case.open().check()

        assert 0 == case.runs()

    def test_a_run_comes_up_and_is_ended(self, case: LauncherCase) -> None:
        """A run is queued or running until it is ended, and then stays so; twice is as once."""
        launcher = case.open()
        handle = launcher.submit(case.application(None), a_token())
        until(launcher, handle, lambda status: status.state is LaunchState.RUNNING)
        ended_by = case.open()
        self.end(ended_by, handle)
        status = until(launcher, handle, lambda status: status.is_over)
        ended_by.end(handle)

        assert 0 != status.exit_code
        assert status.state is launcher.poll(handle).state

    def test_one_token_is_one_run(self, case: LauncherCase) -> None:
        """Submitted once more, also by another process, a token gives the same handle."""
        token, application = a_token(), case.application(None)
        first = case.open().submit(application, token)
        second = case.open().submit(application, token)
        until(case.open(), second, lambda status: status.state is LaunchState.RUNNING)
        self.end(case.open(), first)

        assert first == second
        assert 1 == case.runs()

    def test_one_token_is_one_run_after_its_end(self, case: LauncherCase) -> None:
        """A token whose run is over starts no other one."""
        token, application = a_token(), case.application(3)
        first = case.open().submit(application, token)
        until(case.open(), first, lambda status: status.is_over)

        assert first == case.open().submit(application, token)
        assert 1 == case.runs()

    def test_two_tokens_are_two_runs(self, case: LauncherCase) -> None:
        """Runs do not know of each other: one is ended, and the other continues."""
        launcher = case.open()
        first, second = (launcher.submit(case.application(None), a_token()) for _ in range(2))
        for each in (first, second):
            until(launcher, each, lambda status: status.state is LaunchState.RUNNING)
        self.end(launcher, first)
        until(launcher, first, lambda status: status.is_over)
        status = launcher.poll(second)
        self.end(launcher, second)

        assert LaunchState.RUNNING is status.state
        assert _TWICE == case.runs()

    @pytest.mark.parametrize("exit_code", [0, 2, 5])
    def test_an_end_has_its_exit_code(self, case: LauncherCase, exit_code: int) -> None:
        """A program's own exit code is known when it has ended, and one line says more."""
        launcher = case.open()
        handle = launcher.submit(case.application(exit_code), a_token())
        status = until(launcher, handle, lambda status: status.is_over)

        assert (LaunchState.ENDED, exit_code) == (status.state, status.exit_code)
        assert 1 >= len(status.reason.splitlines())

    def test_a_handle_is_stored_and_read(self, case: LauncherCase) -> None:
        """From its document another process asks about the same run, and it contains no secret."""
        handle = case.open().submit(case.application(None), a_token())
        stored = HandleRecord(**vars(handle)).to_bytes()
        record = HandleRecord.from_dict(json.loads(stored), where="x.handle.json")
        read = record.handle()
        status = until(case.open(), read, lambda status: status.state is LaunchState.RUNNING)
        self.end(case.open(), read)

        assert handle == read
        assert [] == [s for s in case.secrets if s in stored.decode() or s in status.reason]

    def test_a_run_that_is_not_there_is_gone(self, case: LauncherCase) -> None:
        """A token that was never submitted is not taken for a run that may come up."""
        launcher = case.open()
        handle = launcher.submit(case.application(3), a_token())
        until(launcher, handle, lambda status: status.is_over)
        stranger = dataclasses.replace(handle, driver_id=a_token(), id=self.unknown_id(handle))

        assert LaunchState.GONE is launcher.poll(stranger).state
        launcher.end(stranger)
        assert 1 == case.runs()

    def test_a_log_is_read_in_parts(self, case: LauncherCase) -> None:
        """Each part begins where the one before has ended: no line is missing or comes twice."""
        launcher = case.open()
        handle = launcher.submit(case.application(3), a_token())
        until(launcher, handle, lambda status: status.is_over)
        lines, offset = self.whole_log(launcher, handle)

        assert [1, 1] == [sum(line.endswith(each) for line in lines) for each in LINES]
        assert ((), offset) == dataclasses.astuple(launcher.log(handle, offset))

    def unknown_id(self, handle: Handle) -> str:
        return "9" * len(handle.id)

    def whole_log(self, launcher: Launcher, handle: Handle) -> tuple[list[str], int]:
        clock = SystemClock()
        deadline = clock.monotonic() + _DEADLINE_S
        lines: list[str] = []
        offset = 0
        while not any(line.endswith(LINES[-1]) for line in lines):
            assert clock.monotonic() < deadline, lines
            part = launcher.log(handle, offset)
            lines += part.lines
            offset = part.offset
            clock.sleep(_POLL_S)
        while (part := launcher.log(handle, offset)).lines:
            lines += part.lines
            offset = part.offset
        return lines, offset

    def end(self, launcher: Launcher, handle: Handle) -> None:
        clock = SystemClock()
        deadline = clock.monotonic() + _DEADLINE_S
        while clock.monotonic() < deadline:
            try:
                launcher.end(handle)
            except LauncherAwayError:
                clock.sleep(_POLL_S)
            else:
                return


class RemoteLauncherContract(LauncherContract):
    """The contract of a launcher whose answers may be lost."""

    def test_a_lost_reply_is_no_second_run(self, case: RemoteCase) -> None:
        """A submission whose answer was lost has not failed: submitted again, it is the same."""
        token, application = a_token(), case.application(None)
        case.lose_reply()
        with pytest.raises(LauncherAwayError):
            case.open().submit(application, token)
        handle = case.open().submit(application, token)
        until(case.open(), handle, lambda status: status.state is LaunchState.RUNNING)
        case.open().end(handle)

        assert 1 == case.runs()

    def test_a_cluster_that_is_away_says_nothing_of_a_run(self, case: RemoteCase) -> None:
        """While nobody answers nothing is known, nothing has failed; all continues later."""
        launcher = case.open()
        handle = launcher.submit(case.application(None), a_token())
        case.go_away()
        status = launcher.poll(handle)
        for act in (
            launcher.check,
            lambda: launcher.submit(case.application(None), a_token()),
            lambda: launcher.end(handle),
            lambda: launcher.log(handle),
        ):
            with pytest.raises(LauncherAwayError) as raised:
                act()
            assert 1 == len(str(raised.value).splitlines())
        case.come_back()
        again = until(launcher, handle, lambda status: status.state is LaunchState.RUNNING)
        launcher.end(handle)

        assert (LaunchState.UNKNOWN, LaunchState.RUNNING) == (status.state, again.state)
        assert 1 == len(status.reason.splitlines())

    def test_a_stranger_is_refused(self, case: RemoteCase) -> None:
        """With wrong credentials nothing is started or ended; one line says so, without them."""
        handle = case.open().submit(case.application(None), a_token())
        stranger = case.open_as_stranger()
        for act in (
            stranger.check,
            lambda: stranger.submit(case.application(None), a_token()),
            lambda: stranger.end(handle),
        ):
            with pytest.raises(ConfigError) as raised:
                act()
            assert 1 == len(str(raised.value).splitlines())
            assert [] == [secret for secret in case.secrets if secret in str(raised.value)]
        is_unknown = LaunchState.UNKNOWN is stranger.poll(handle).state
        until(case.open(), handle, lambda status: status.state is LaunchState.RUNNING)
        case.open().end(handle)

        assert is_unknown
        assert 1 == case.runs()

    def test_the_run_of_another_token_is_not_touched(self, case: RemoteCase) -> None:
        """A handle that was changed to another run's id ends nothing."""
        launcher = case.open()
        handle = launcher.submit(case.application(None), a_token())
        until(launcher, handle, lambda status: status.state is LaunchState.RUNNING)
        forged = dataclasses.replace(handle, driver_id=a_token())
        with contextlib.suppress(ConfigError):  # or nothing is found under its token
            launcher.end(forged)
        state = launcher.poll(handle).state
        launcher.end(handle)
        until(launcher, handle, lambda status: status.is_over)

        assert LaunchState.RUNNING is state


class RacingLauncherContract(RemoteLauncherContract):
    """The contract of a launcher whose cluster itself decides between racing submissions."""

    def test_racing_submissions_are_one_run(self, case: RemoteCase) -> None:
        """Of several processes that submit one token at a time all get the same run."""
        token, application = a_token(), case.application(None)
        with ThreadPoolExecutor(4) as pool:
            submitted = [pool.submit(case.open().submit, application, token) for _ in range(4)]
            handles = [each.result() for each in submitted]
        until(case.open(), handles[0], lambda status: status.state is LaunchState.RUNNING)
        case.open().end(handles[0])

        assert [handles[0]] * 4 == handles
        assert 1 == case.runs()
