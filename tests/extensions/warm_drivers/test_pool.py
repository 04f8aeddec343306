"""Handing a run to a standby, over real sockets and without a JVM: who serves it, who is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow_provider.extensions.warm_drivers.pool import (
    GO,
    READY,
    StandbyRequest,
    StandbyRun,
    StandbySpec,
    check_pool_folder,
    check_user,
    hand_over,
    listen,
    receive,
    send,
    standby_socket,
)
from airflow_provider.extensions.warm_drivers.standby import Run, wait_for_run

from airflow_provider.extensions.warm_drivers import pool_command
from airflow_provider.runtime.base.host import user_folder
from airflow_provider.runtime.errors import EXIT_RETRY, ConfigError
from tests.pipes import stdin_of, stdout_of
from tests.present import present

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

STATIC = "spark.sql.warehouse.dir"
SPEC = StandbySpec(
    python=("/venv/bin/python3", "/venv/bin/python3", "/venv/bin/python3"),
    runtime="0.1.0 1",
    master="local[2]",
    conf={"spark.executor.memory": "1g", "spark.sql.shuffle.partitions": "2", STATIC: "a"},
    environment={"HADOOP_CONF_DIR": "conf"},
    umask=0o022,
    groups=(0, 4),
)
OFFER = StandbyRequest(
    arguments=("run", "JOB_DIR"),
    environment={"GREETING": "hello"},
    folder="/",
    spec=SPEC,
    ends_with_client=True,
)
NOBODY = 65534
LIMIT_S = 30.0
FOREIGN = """
import json, os, socket, sys
from airflow_provider.extensions.warm_drivers.pool import receive, send
os.setgroups([]); os.setgid(65534); os.setuid(65534)
channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
"""
# Everything of a standby but its JVM, in the place of which there is an object that says yes to all.
DRIVER = """
import os, signal, sys
from airflow_provider.extensions.warm_drivers import standby

class Spark:
    def __getattr__(self, name):
        return self

    def __call__(self, *_):
        return self

    def stop(self):
        while "NEVER_STOPS" in os.environ:
            signal.pause()

def job(arguments, spark):
    if arguments[0] == "look":
        print(os.environ["GREETING"], os.getcwd(), sys.argv, sys.stdin.readline())
        print("to stderr", file=sys.stderr)
        return 7
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
    print("at work", flush=True)
    while True:
        signal.pause()

standby.start_spark = lambda *_: Spark()
standby.warm_up = lambda *_, **__: None
standby.spark_stream = job
standby.SparkLog.of = lambda _: None
os._exit(standby.main(sys.argv[1:]))
"""


def is_static(key: str) -> bool:
    return key == STATIC


class Idle:
    """A standby in a thread of this process, which does nothing with the run that it takes."""

    def __init__(self, folder: Path, number: int = 1) -> None:
        self.path = folder / f"standby-{number}.sock"
        self.pool, its = socket.socketpair()
        self._parent = its.detach()
        self._thread = ThreadPoolExecutor(1)
        self._run = self._thread.submit(wait_for_run, self.path, self._parent, SPEC, is_static)
        assert self.pool.recv(16) == b"ready\n"

    def taken(self) -> Run | None:
        return self._run.result(LIMIT_S)

    def close(self) -> None:
        self.pool.close()
        run = self.taken()
        if run is None:
            os.close(self._parent)
        else:
            run[0].close()
            for file in run[2]:
                with contextlib.suppress(OSError):
                    os.close(file)
        self._thread.shutdown()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a pool's folder: its path is short enough for sockets, and it is this user's alone."""
    with tempfile.TemporaryDirectory(prefix="pool-") as path:
        yield Path(path)


@pytest.fixture
def idle(folder: Path) -> Iterator[Idle]:
    standby = Idle(folder)
    yield standby
    standby.close()


def offer_to(
    folder: Path, handover: StandbyRequest = OFFER, files: tuple[int, ...] = ()
) -> StandbyRun:
    taken = hand_over(folder, handover, files)
    assert isinstance(taken, StandbyRun), taken
    return taken


def end(taken: StandbyRun) -> None:
    taken._channel.close()


def changed(**fields: Any) -> StandbyRequest:
    return dataclasses.replace(OFFER, spec=dataclasses.replace(SPEC, **fields))


def with_conf(**settings: str) -> dict[str, str]:
    return {**SPEC.conf, **{key.replace("_", "."): value for key, value in settings.items()}}


def connected(path: Path) -> socket.socket:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.settimeout(LIMIT_S)
    channel.connect(str(path))
    return channel


def assert_it_still_serves(standby: Idle) -> None:
    taken = offer_to(standby.path.parent)
    run = standby.taken()
    assert run is not None
    assert OFFER == run[1]
    end(taken)


# --- what is handed over ------------------------------------------------------------------------


def test_a_run_is_handed_over_with_its_open_files(folder, idle):
    """The driver has the command, and writes to the very files that the client has opened."""
    read, write = os.pipe()
    taken = offer_to(folder, files=(write,))
    os.close(write)

    _, handover, files = present(idle.taken())
    os.write(files[0], b"from the driver")

    assert OFFER == handover
    assert os.getpid() == taken.pid
    assert b"from the driver" == os.read(read, 64)
    assert b"busy\n" == idle.pool.recv(16)
    os.close(read)
    end(taken)


def test_a_large_environment_arrives_whole(folder, idle):
    """A message may be larger than what a socket takes at once."""
    large = dataclasses.replace(OFFER, environment={"LARGE": "x" * (1 << 20)})

    end(offer_to(folder, large))

    assert large == present(idle.taken())[1]


def test_a_handover_is_what_a_process_would_have(monkeypatch, tmp_path):
    """Environment and working directory are those of the client."""
    monkeypatch.setenv("GREETING", "hello")
    monkeypatch.chdir(tmp_path)
    handover = StandbyRequest.of_this_process(["run"], SPEC, ends_with_client=True)

    assert ("hello", str(tmp_path)) == (handover.environment["GREETING"], handover.folder)
    assert handover == StandbyRequest.from_dict(json.loads(json.dumps(handover.to_dict())))


def test_a_spec_has_what_java_reads_and_no_secret():
    """
    Variables of Java and its libraries count; those of the shell and of secret parameters do not.
    """
    spec = StandbySpec.of(
        None,
        {"spark.a": "1"},
        {
            "HADOOP_CONF_DIR": "/etc/hadoop",
            "_JAVA_OPTIONS": "-Xmx1g",
            "TZ": "UTC",
            "EDITOR": "vi",
            "PYSPARK_PYTHON": "/none/of/this/name",
            "SPARK_STREAM_SECRET_1": "s3cr3t",
        },
    )

    assert {"HADOOP_CONF_DIR": "/etc/hadoop", "_JAVA_OPTIONS": "-Xmx1g", "TZ": "UTC"} == (
        spec.environment
    )
    assert ("/none/of/this/name",) * 2 == spec.python[1:]
    assert "local[*]" == spec.master


@pytest.mark.parametrize(
    ("name", "pools", "runs"),
    [
        ("KRB5CCNAME", "/run/krb5cc_pool", "/run/krb5cc_job"),
        ("KRB5_CONFIG", "a", "b"),
        ("CLOUDSDK_CONFIG", "/a", "/b"),
        ("HADOOP_USER_NAME", "a", "b"),
        ("AWS_PROFILE", "a", None),
        ("AZURE_CLIENT_ID", None, "b"),
        ("GOOGLE_APPLICATION_CREDENTIALS", "a.json", "b.json"),
        ("PYTHONPATH", "/a", "/b"),
        ("PYTHONHASHSEED", "1", None),
        ("HOME", "/srv/a", "/srv/b"),
    ],
)
def test_a_variable_that_a_library_reads_at_its_start_is_compared(name, pools, runs):
    """
    Of Kerberos, the clouds, Hadoop, Python, and what names a home: the JVM has read the pool's.
    """
    mine, theirs = (
        StandbySpec.of(None, {}, {"LANG": "C", **({name: value} if value else {})})
        for value in (pools, runs)
    )

    assert f"its variable {name} is another one than the run's" == (
        mine.difference(theirs, is_static=is_static)
    )
    assert mine.difference(mine, is_static=is_static) is None


def test_an_interpreter_is_the_file_that_its_name_means(tmp_path, monkeypatch):
    """
    The same name on another PATH is another interpreter, two names of one file are one, and the
    interpreter of the pool's own process counts also where workers have the same.
    """
    for venv in ("a", "b"):
        (tmp_path / venv).mkdir()
        for name in ("python", "python3"):
            (tmp_path / venv / name).symlink_to(sys.executable)

    def spec(folder: str, name: str = "python3") -> StandbySpec:
        environ = {"PYSPARK_PYTHON": name, "PATH": str(tmp_path / folder)}
        return StandbySpec.of(None, {}, environ)

    mine = spec("a")
    assert mine.difference(spec("a", "python"), is_static=is_static) is None
    assert "its python is " in present(mine.difference(spec("b"), is_static=is_static))
    missing = [spec(folder, "no-such-python") for folder in ("a", "b")]
    assert "its python is " in present(missing[0].difference(missing[1], is_static=is_static))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "b/python"))
    assert "its python is " in present(mine.difference(spec("a"), is_static=is_static))


# --- what does not fit --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"python": ("python3.13",) * 3}, "the run's python3.13"),
        ({"umask": 0o077}, "its umask is 022, the run's 077"),
        ({"groups": (0,)}, "its list of groups is 0 4, the run's 0"),
        ({"runtime": "0.2.0 2"}, "its runtime is 0.1.0 1, the run's 0.2.0 2"),
        ({"master": "yarn"}, "its master is local[2], the run's yarn"),
        ({"conf": with_conf(spark_executor_memory="2g")}, "setting spark.executor.memory"),
        ({"conf": with_conf(spark_jars="a.jar")}, "setting spark.jars"),
        ({"conf": {}}, "setting spark.executor.memory"),
        ({"conf": {**SPEC.conf, STATIC: "b"}}, f"setting {STATIC}"),
        ({"environment": {}}, "variable HADOOP_CONF_DIR"),
        ({"environment": {"HADOOP_CONF_DIR": "other"}}, "variable HADOOP_CONF_DIR"),
    ],
)
def test_a_run_that_needs_another_driver_is_refused(folder, idle, fields, named):
    """One line names what differs, and the standby waits for the next run."""
    reason = hand_over(folder, changed(**fields), ())

    assert isinstance(reason, str)
    assert reason.startswith("standby-1 cannot take it: ")
    assert named in reason
    assert "\n" not in reason
    assert_it_still_serves(idle)


@pytest.mark.parametrize(
    "conf",
    [
        with_conf(spark_sql_shuffle_partitions="7"),
        with_conf(spark_sql_ansi_enabled="false"),
        with_conf(spark_log_level="ERROR"),
        with_conf(spark_app_name="another"),
    ],
)
def test_what_can_be_set_at_any_time_makes_no_difference(folder, idle, conf):
    """
    A session of its own takes settings of Spark's SQL that are not static; log level and name, too.
    """
    handover = changed(conf=conf)

    end(offer_to(folder, handover))

    assert handover == present(idle.taken())[1]


# --- the pool's folder --------------------------------------------------------------------------


def test_without_a_folder_there_is_no_pool(folder):
    """A run starts cold where nobody has started a pool, or where its standbys are busy."""
    assert f"there is no pool in {folder}/none" == hand_over(folder / "none", OFFER, ())
    assert f"no standby in {folder} is free" == hand_over(folder, OFFER, ())


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_folder_that_others_can_enter_is_refused(folder, idle, mode):
    """Another user could take the run, with its environment."""
    folder.chmod(mode)

    assert "must be this user's alone (mode 0700)" in str(hand_over(folder, OFFER, ()))


def test_a_link_to_a_folder_is_refused(folder, idle):
    """In a folder that all can write anybody could have put it there."""
    with tempfile.TemporaryDirectory() as other:
        link = Path(other) / "pool"
        link.symlink_to(folder)

        assert "must be this user's alone" in str(hand_over(link, OFFER, ()))


def test_a_folder_too_long_for_a_socket_is_refused(folder):
    """The longest folder that is accepted has room for the socket of any standby."""
    room = 107 - len("/standby-4194304.sock") - len(str(folder)) - 1
    longest, longer = folder / ("x" * room), folder / ("x" * (room + 1))
    for made in (longest, longer):
        made.mkdir(mode=0o700)

    check_pool_folder(longest)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(longest / "standby-4194304.sock"))
    with pytest.raises(ConfigError, match="too long for a socket"):
        check_pool_folder(longer)
    assert "too long for a socket" in str(hand_over(longer, OFFER, ()))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SPARK_STREAM_POOL": "/mine", "XDG_RUNTIME_DIR": "/run/user/7"}, "/mine"),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, "/run/user/7/spark-stream"),
        ({}, f"/tmp/spark-stream-{os.geteuid()}"),  # noqa: S108 - nothing is made there
    ],
)
def test_each_user_has_a_pool(environ, expected):
    """The folder is named, or of the user's session, or has the user's number."""
    assert Path(expected) == user_folder(environ)


def test_a_socket_is_its_users_alone(idle):
    """Its mode is 0600, whatever the umask is."""
    assert 0o600 == stat.S_IMODE(idle.path.stat().st_mode)


# --- a side that goes away ----------------------------------------------------------------------


def test_a_client_that_goes_before_it_says_go_changes_nothing(folder, idle):
    """The standby has answered, nobody has taken its answer, and the next client is served."""
    with connected(idle.path) as channel:
        send(channel, OFFER.to_dict())
        assert READY == receive(channel)

    assert_it_still_serves(idle)


def test_only_go_gives_the_run_away(folder, idle):
    """Another message in its place is none."""
    with connected(idle.path) as channel:
        send(channel, OFFER.to_dict())
        receive(channel)
        send(channel, {"stay": True})
        assert channel.recv(1) == b""

    assert_it_still_serves(idle)


def test_a_standby_that_dies_before_it_answers_is_passed_over(folder):
    """
    One has left its socket behind, one dies with the offer in its hands: the third takes the run.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as gone:
        gone.bind(str(folder / "standby-0.sock"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dying:
        dying.bind(str(folder / "standby-1.sock"))
        dying.listen()

        def die() -> None:
            channel, _ = dying.accept()
            with channel:
                receive(channel)

        dies = threading.Thread(target=die)
        dies.start()
        standby = Idle(folder, 2)
        assert_it_still_serves(standby)
        dies.join()
    standby.close()


def test_if_the_last_standby_dies_the_run_starts_cold(folder):
    """The reason says which one, and that it has ended."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dying:
        dying.bind(str(folder / "standby-1.sock"))
        dying.listen()

        def die() -> None:
            channel, _ = dying.accept()
            with channel:
                receive(channel)

        dies = threading.Thread(target=die)
        dies.start()
        assert "standby-1 cannot take it: it has ended" == hand_over(folder, OFFER, ())
        dies.join()


def test_the_exit_code_arrives(folder, idle):
    """The client ends with the code that the driver sends."""
    taken = offer_to(folder)
    send(present(idle.taken())[0], {"exit": 4})

    assert 4 == taken.wait()
    end(taken)


@pytest.mark.parametrize("last_words", [b"", b"\0\0", b"\0\0\0\2[]"])
def test_a_driver_that_dies_can_be_resumed(folder, idle, last_words):
    """Without its exit code the client says that the run may be started again."""
    taken = offer_to(folder)
    channel = present(idle.taken())[0]
    channel.sendall(last_words)
    channel.close()

    assert EXIT_RETRY == taken.wait()
    end(taken)


def test_a_signal_is_passed_on(folder, idle):
    """The driver gets its number; after its end nothing happens."""
    taken = offer_to(folder)
    channel = present(idle.taken())[0]
    taken.signal(signal.SIGTERM)

    assert {"signal": signal.SIGTERM} == receive(channel)
    channel.close()
    taken.signal(signal.SIGTERM)
    end(taken)


def test_a_standby_ends_with_its_pool(folder, idle):
    """When the other end of the line is closed it stops listening, and leaves no socket."""
    idle.pool.close()

    assert idle.taken() is None
    assert [] == list(folder.iterdir())


def test_a_run_goes_on_when_the_pool_ends_as_it_is_taken(folder, idle):
    """The pool has gone between the answer and "go": nobody hears "busy", and the run is served."""
    with connected(idle.path) as channel:
        send(channel, OFFER.to_dict())
        receive(channel)
        idle.pool.close()
        send(channel, GO)

        assert OFFER == present(idle.taken())[1]


# --- what is no message -------------------------------------------------------------------------


def message(data: bytes) -> bytes:
    return struct.pack("!I", len(data)) + data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("!I", (1 << 24) + 1) + b"{}",
        struct.pack("!I", 100) + b"{}",
        message(b"{"),
        message(b"\xff\xfe"),
        message(b"[1]"),
        message(b"{}"),
        message(b"[" * 100_000),
        message(json.dumps({**OFFER.to_dict(), "folder": 22}).encode()),
    ],
    ids=["nothing", "two bytes", "http", "too long", "cut", "half", "bytes", "list", "empty",
         "deep", "wrong type"],
)  # fmt: skip
def test_what_is_no_message_is_refused(folder, idle, data):
    """The standby closes the connection, and serves the next client."""
    with connected(idle.path) as channel:
        channel.sendall(data)
        channel.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):  # it did not read all
            assert b"" == channel.recv(1)

    assert_it_still_serves(idle)


def test_the_files_of_a_refused_run_are_closed(folder, idle):
    """The client's reader sees the end of the pipe, although the standby lives on."""
    read, write = os.pipe()
    assert isinstance(hand_over(folder, changed(master="yarn"), (write,)), str)
    os.close(write)

    assert b"" == os.read(read, 1)
    os.close(read)


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


def test_a_client_of_another_user_is_refused(folder, idle):
    """Even if the modes of folder and socket let it in, it gets no answer."""
    folder.chmod(0o711)
    idle.path.chmod(0o666)
    script = """
channel.connect(sys.argv[1])
try:
    send(channel, json.loads(sys.argv[2]))
    print(receive(channel))
except OSError:
    print(None)
"""
    client = as_nobody(script, str(idle.path), json.dumps(OFFER.to_dict()))
    output, _ = client.communicate(timeout=LIMIT_S)
    folder.chmod(0o700)

    assert "None\n" == output
    assert_it_still_serves(idle)


def test_a_standby_of_another_user_gets_no_run(folder):
    """The client sees who listens before it sends anything."""
    folder.chmod(0o777)
    path = folder / "standby-1.sock"
    script = "channel.bind(sys.argv[1]); channel.listen(); print('ready', flush=True); input()"
    with as_nobody(script, str(path)) as standby:
        assert "ready\n" == stdout_of(standby).readline()
        folder.chmod(0o700)

        assert f"no standby in {folder} is free" == hand_over(folder, OFFER, ())
        with connected(path) as channel, pytest.raises(PermissionError, match=str(NOBODY)):
            check_user(channel)
        stdin_of(standby).close()


# --- the pool ---------------------------------------------------------------------------------


def test_the_socket_of_a_killed_standby_is_removed(folder):
    """Its number may be another process's tomorrow, which could not listen there."""
    pool = pool_command._Pool(folder, 1, None, {})
    process = subprocess.Popen(["sleep", "60"])
    left, own = (standby_socket(folder, pid) for pid in (process.pid, os.getpid()))
    for path in (left, own):
        listen(path).close()
    log = folder / "standby-1.log"
    log.touch()
    pool._drivers.append(pool_command._Driver(process, None, log, pool_command.READY, 0.0))
    process.kill()
    process.wait(LIMIT_S)

    pool._reap()

    assert not left.exists()
    assert own.exists()
    assert not log.exists()


# --- a process of its own -----------------------------------------------------------------------


@contextlib.contextmanager
def a_process(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a standby as a process, with everything but Spark, until the block ends."""
    pool, its = socket.socketpair()
    start = json.dumps({"master": "local[2]", "conf": {}, "log": str(folder / "standby-1.log")})
    with its:
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(folder), str(its.fileno()), start],
            stdin=subprocess.DEVNULL,
            pass_fds=[its.fileno()],
        )
    with pool, process:
        try:
            assert pool.recv(16) == b"ready\n"
            yield process
        finally:
            process.kill()


def offered(*arguments: str, **fields: Any) -> StandbyRequest:
    spec = StandbySpec.of("local[2]", {}, os.environ)
    handover = StandbyRequest.of_this_process(arguments, spec, ends_with_client=True)
    return dataclasses.replace(handover, **fields)


def environment(**more: str) -> Mapping[str, str]:
    return {**os.environ, **more}


@pytest.mark.slow
def test_a_driver_is_as_if_the_client_had_started_it(folder, tmp_path):
    """
    Its files, environment, working directory and arguments are the client's, and so is its exit
    code.
    """
    output, errors = tmp_path / "output", tmp_path / "errors"
    (tmp_path / "input").write_text("a line\n")
    look = offered("look", folder=str(tmp_path), environment=environment(GREETING="hello"))
    with (
        a_process(folder) as process,
        (tmp_path / "input").open() as given,
        output.open("w") as out,
        errors.open("w") as err,
    ):
        taken = offer_to(folder, look, (given.fileno(), out.fileno(), err.fileno()))

        assert process.pid == taken.pid
        assert 7 == taken.wait()
        end(taken)
        assert 7 == process.wait(LIMIT_S)

    assert f"hello {tmp_path} ['spark-stream', 'look'] a line\n\n" == output.read_text()
    assert "to stderr\n" == errors.read_text()


@pytest.mark.slow
def test_who_reads_the_output_does_not_wait_until_spark_has_stopped(folder, tmp_path):
    """
    A pipe from the driver ends when the run does, and not when the driver's process has ended.
    """
    read, write = os.pipe()
    never = environment(GREETING="hello", NEVER_STOPS="1")
    with os.fdopen(read) as output, a_process(folder) as process:
        taken = offer_to(folder, offered("look", environment=never), (0, write, write))
        os.close(write)

        said = output.read()
        code = taken.wait()
        is_alive = process.poll() is None
        end(taken)

    assert said.endswith("to stderr\n")
    assert (7, True) == (code, is_alive)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "code"), [("signal", 9), ("kill", EXIT_RETRY), ("client ends", 9)]
)
def test_a_driver_ends_by_a_signal_or_with_its_client(folder, what, code):
    """
    A signal reaches the job, one that dies can be resumed, and without its client it is asked to end.
    """
    read, write = os.pipe()
    with os.fdopen(read) as output, a_process(folder) as process:
        taken = offer_to(folder, offered("wait"), (0, write, 2))
        os.close(write)
        assert "at work\n" == output.readline()
        if what == "client ends":
            end(taken)
            assert code == process.wait(LIMIT_S)
        else:
            if what == "kill":
                process.kill()
            else:
                taken.signal(signal.SIGTERM)
            assert code == taken.wait()
            end(taken)
