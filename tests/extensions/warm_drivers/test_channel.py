"""Messages between a driver and its clients, and who can send any: over real sockets."""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider.extensions.warm_drivers.channel import (
    RUNS_SOCKET,
    check_pool_folder,
    check_user,
    listen,
    receive,
    send,
)
from airflow_provider.extensions.warm_drivers.client import hand_over
from airflow_provider.runtime.base.host import user_folder
from airflow_provider.runtime.errors import ConfigError
from tests.extensions.warm_drivers.conftest import LIMIT_S, RUN
from tests.pipes import stdin_of, stdout_of

NOBODY = 65534
FOREIGN = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
"""
Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Yield both ends of a connection; neither waits for ever."""
    mine, its = socket.socketpair()
    with mine, its:
        for end in (mine, its):
            end.settimeout(LIMIT_S)
        yield mine, its


def message(data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + data


def test_open_files_arrive_with_a_message(ends):
    """Its receiver writes to the very file that the sender has opened."""
    read, write = os.pipe()
    send(ends[0], {"a": 1}, [write])
    os.close(write)
    files: list[int] = []

    assert {"a": 1} == receive(ends[1], files)
    os.write(files[0], b"from there")
    os.close(files[0])
    assert b"from there" == os.read(read, 64)
    assert b"" == os.read(read, 1)
    os.close(read)


@pytest.mark.parametrize("files", [None, []])
def test_a_message_arrives_whole(ends, files):
    """It may be larger than what a socket takes at once."""
    large = {"LARGE": "x" * (1 << 20)}
    sender = threading.Thread(target=send, args=(ends[0], large))
    sender.start()

    assert large == receive(ends[1], files)
    sender.join()


@pytest.mark.parametrize("cut", [1, 3, 4, 6])
@pytest.mark.parametrize("files", [None, []])
def test_a_message_that_comes_in_parts_is_waited_for(ends, cut, files):
    """A timeout of the socket cuts no message short that arrives within it."""
    data = message(b'{"a": 1}')
    ends[0].sendall(data[:cut])
    later = threading.Timer(0.02, ends[0].sendall, [data[cut:]])
    later.start()

    assert {"a": 1} == receive(ends[1], files)
    later.join()


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("!I", (1 << 24) + 1) + b"{}",
        struct.pack("!I", 100) + b'{"a"',
        message(b"{"),
        message(b"\xff\xfe"),
        message(b"[1]"),
        message(b"[" * 100_000),
    ],
    ids=["two bytes", "http", "too long", "cut", "half", "bytes", "list", "deep"],
)
def test_what_is_no_message_is_an_error(ends, data):
    """Nothing but an object of JSON, with its length before it."""
    ends[0].sendall(data)
    ends[0].close()

    with pytest.raises(ValueError, match="."):
        receive(ends[1])


@pytest.mark.parametrize("files", [None, []])
def test_the_end_of_a_connection_is_no_message(ends, files):
    """A side that has closed in good order has said nothing wrong."""
    ends[0].close()

    assert receive(ends[1], files) is None


# --- the pool's folder --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_folder_that_others_can_enter_is_refused(folder, mode):
    """Another user could take the run, with its environment."""
    folder.chmod(mode)

    with pytest.raises(ConfigError, match="must be this user's alone \\(mode 0700\\)"):
        check_pool_folder(folder)


def test_a_link_to_a_folder_is_refused(folder):
    """In a folder that all can write anybody could have put it there."""
    with tempfile.TemporaryDirectory() as other:
        link = Path(other) / "pool"
        link.symlink_to(folder)

        with pytest.raises(ConfigError, match="must be this user's alone"):
            check_pool_folder(link)


def test_a_folder_too_long_for_a_socket_is_refused(folder):
    """The longest folder that is accepted has room for the pool's longest socket."""
    room = 107 - len(f"{folder}//{RUNS_SOCKET}")
    longest, longer = folder / ("x" * room), folder / ("x" * (room + 1))
    for made in (longest, longer):
        made.mkdir(mode=0o700)

    check_pool_folder(longest)
    listen(longest / RUNS_SOCKET).close()
    with pytest.raises(ConfigError, match="too long for a socket"):
        check_pool_folder(longer)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SPARK_STREAM_WARM_DRIVERS": "/mine", "XDG_RUNTIME_DIR": "/run/user/7"}, "/mine"),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, "/run/user/7/spark-stream"),
        ({}, f"/tmp/spark-stream-{os.geteuid()}"),  # noqa: S108 - nothing is made there
    ],
)
def test_each_user_has_a_pool(environ, expected):
    """The folder is named, or of the user's session, or has the user's number."""
    assert Path(expected) == user_folder(environ)


@pytest.mark.parametrize("umask", [0, 0o077])
def test_a_socket_is_its_users_alone(folder, umask):
    """Its mode is 0600, whatever the umask is, which stays."""
    before = os.umask(umask)
    try:
        listen(folder / RUNS_SOCKET).close()
        assert umask == os.umask(umask)
    finally:
        os.umask(before)

    assert 0o600 == stat.S_IMODE((folder / RUNS_SOCKET).stat().st_mode)


# --- other users --------------------------------------------------------------------------------


def as_nobody(script: str, *arguments: str) -> subprocess.Popen[str]:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    return subprocess.Popen(
        [sys.executable, "-c", FOREIGN + script, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_client_of_another_user_is_refused(folder, idle, given):
    """Even if the modes of folder and socket let it in, it gets no answer."""
    folder.chmod(0o711)
    path = folder / RUNS_SOCKET
    path.chmod(0o666)
    script = "channel.connect(sys.argv[1]); print(channel.recv(1))"
    output, _ = as_nobody(script, str(path)).communicate(timeout=LIMIT_S)
    folder.chmod(0o700)

    assert "b''\n" == output
    given()
    assert RUN == idle.taken()[1]


def test_a_listener_of_another_user_gets_no_run(folder):
    """The client sees who listens before it sends anything."""
    folder.chmod(0o777)
    path = folder / RUNS_SOCKET
    script = """
channel.bind(sys.argv[1]); channel.listen(); print('ready', flush=True)
other, _ = channel.accept()
print(other.recv(1), flush=True)
"""
    with as_nobody(script, str(path)) as foreign:
        assert "ready\n" == stdout_of(foreign).readline()
        folder.chmod(0o700)

        assert f"the other end belongs to user {NOBODY}" == hand_over(folder, RUN, ())
        assert "b''\n" == stdout_of(foreign).readline()
        stdin_of(foreign).close()


def test_a_process_of_this_user_is_accepted(ends):
    """Both ends of a connection of one user pass."""
    for end in ends:
        check_user(end)
