"""Examples of commands, a help that can be cut short, completion; ``check`` and ``init``."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider.extensions.upgrades.upgrade_request import UpgradeSpec
from airflow_provider.runtime.cli.command_parser import (
    EXAMPLES,
    command_of,
    commands_of,
    read_options,
    split_arguments,
)
from airflow_provider.runtime.cli.main import _parser, main
from airflow_provider.runtime.cli.setup_commands import FILES, SHELLS
from airflow_provider.runtime.errors import EXIT_LEASE, EXIT_OK, EXIT_USAGE
from airflow_provider.runtime.jobdir.lease_records import lease_path
from airflow_provider.runtime.jobdir.run_options import options_of
from airflow_provider.runtime.testing.job_directories import JobDirectoryBuilder, an_attempt
from tests.unit.support import FakeClock, take_lease

COMMAND = [sys.executable, "-m", "airflow_provider.runtime.cli"]
JOB = "import os\n\ndef counts(ctx):\n    raise AssertionError('it is not called')\n"
OF_AIRFLOW = {"check-connection"}


@pytest.fixture
def job(tmp_path) -> JobDirectoryBuilder:
    return JobDirectoryBuilder(tmp_path / "job")


@pytest.fixture
def entry(tmp_path) -> str:
    (tmp_path / "counts.py").write_text(JOB)
    return f"{tmp_path}/counts.py:counts"


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


# --- help ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_command_has_examples_that_it_takes():
    """None is left out, and each is a command line that the parser knows."""
    parser = _parser("spark-stream", "", ())
    commands = dict(commands_of(parser))

    assert set(EXAMPLES) - OF_AIRFLOW == set(commands)
    for command, each in commands.items():
        for arguments in EXAMPLES[command]:
            line = f"spark-stream {command} {arguments}".rstrip()
            assert f"  {line}\n" in each.format_help()
            own, _ = split_arguments(shlex.split(line)[1:])
            assert callable(parser.parse_args(own).command)
    assert "  spark-stream init my-stream\n" in parser.format_help()
    group = next(
        g for a in parser._actions for n, g in dict(a.choices or ()).items() if n == "warm-drivers"
    )
    assert "  spark-stream warm-drivers start --size 2\n" in group.format_help()


def test_every_command_has_a_section_of_the_page():
    """And a command of a group a line of its group's."""
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()

    for command, _ in commands_of(_parser("spark-stream", "", ())):
        group, _, action = command.partition(" ")
        section = page.partition(f"\n## {group}\n")[2].partition("\n## ")[0]
        assert (
            f"spark-stream {group}{f' {action}' if action else ''}" in section or group == "driver"
        )
        assert section


def test_a_command_of_another_program_has_its_name_in_the_examples():
    """As ``airflow spark-stream``, whose help shows what its users type."""
    parser = _parser("airflow spark-stream", "ls", ())

    assert "  airflow spark-stream ls /data/jobs\n" in dict(commands_of(parser))["ls"].format_help()


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["run", "--help"], ["ls", "{}"], ["logs", "{}"]], ids=str)
def test_a_pipe_that_is_closed_makes_no_sound(job, tmp_path, arguments):
    """Of a help and a list, before the first line is read: exit code 0, and nothing on stderr."""
    job.begin().request_run()
    (tmp_path / "job" / "runs" / "r1" / "logs").mkdir()
    argv = [argument.format(job.root) for argument in arguments]
    if argv[0] == "logs":
        job.directory.run("r1").put_attempt(an_attempt())
        (tmp_path / "job/runs/r1/logs/d1.log").write_text("a line of a log\n" * 100_000)
    reads, writes = os.pipe()
    os.close(reads)
    run = subprocess.run([*COMMAND, *argv], stdout=writes, stderr=subprocess.PIPE, check=False)
    os.close(writes)

    assert (EXIT_OK, b"") == (run.returncode, run.stderr)


# --- check --------------------------------------------------------------------------------------


def test_a_check_writes_nothing_and_says_what_a_run_would_do(job, entry, capsys):
    """
    A new run is begun, an unfinished one resumed, a finished one left alone; the function is not called.
    """
    argv = ["check", str(job.root), "--entry", entry]

    assert EXIT_OK == main(argv)
    assert not job.root.exists()
    assert ": run manual-" in (new := capsys.readouterr().out)
    assert "would begin\nnothing is refused; --spark looks at its queries and sinks, too\n" in new

    job.begin().request_run("r1", params={}).ran(0)
    job.directory.run("r1").put_attempt(an_attempt())
    before = everything_in(job.root)
    assert EXIT_OK == main(argv)
    assert f"{job.root}: run r1 would resume, as attempt 2\n" in capsys.readouterr().out
    assert before == everything_in(job.root)

    job.finished()
    assert EXIT_OK == main(argv)
    assert "run r1 is finished since 2026-01-01 00:00:00 UTC; noth" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--param", "input"], "--param 'input': write --param NAME=VALUE"),
        (["--run-id", "a/b"], "run id 'a/b': use letters"),
        (["--entry", "nowhere.py:f"], "there is no file nowhere.py"),
        (["--entry", "{}:other"], "has no function 'other'; it has counts"),
        (["--mode", "batch", "--until", "stopped"], "mode 'batch' reads everything and ends"),
        (["--master", "sc://127.0.0.1"], "sc://127.0.0.1"),
    ],
)
def test_a_check_refuses_what_a_run_refuses(job, entry, capsys, options, complaint):
    """With the same line and exit code, and without a trace."""
    file = entry.rpartition(":")[0]
    argv = [str(job.root), "--entry", entry, *(option.format(file) for option in options)]

    assert [EXIT_USAGE] * 2 == [main([command, *argv]) for command in ("check", "run")]
    checked, run = capsys.readouterr().err.splitlines()
    assert checked == run
    assert complaint in checked
    assert not job.root.exists()


@pytest.mark.slow
def test_a_check_of_a_job_that_is_running_says_so(job, entry, capsys):
    """Another driver holds the lease, which the check neither takes nor waits for to be free."""
    job.begin()
    lease = take_lease(job.storage, FakeClock(), heartbeat_s=0.01)
    argv = ["check", str(job.root), "--entry", entry]

    assert EXIT_LEASE == main(argv)
    lease.release()
    assert "is running this job" in capsys.readouterr().err
    assert not job.storage.exists(lease_path(2))


# --- init ---------------------------------------------------------------------------------------


def test_init_writes_a_job_that_a_check_accepts(tmp_path, capsys):
    """The job's file is imported, the DAG and the test are programs; tests/spark runs the test."""
    folder = tmp_path / "a folder"

    assert EXIT_OK == main(["init", str(folder)])
    assert set(FILES) == {each.name for each in folder.iterdir()}
    for name in FILES:
        compile((folder / name).read_text(), name, "exec")
    assert EXIT_OK == main(["check", str(tmp_path / "job"), "--entry", f"{folder}/job.py:counts"])
    assert f"  pytest '{folder}'\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", FILES)
def test_init_replaces_no_file(tmp_path, capsys, name):
    """
    One of them that is there, even a link that leads nowhere, stays as it is, and nothing is written.
    """
    (tmp_path / name).symlink_to(tmp_path / "nowhere")

    assert EXIT_USAGE == main(["init", str(tmp_path)])
    assert f"{name} is there already; name another folder" in capsys.readouterr().err
    assert [name] == [each.name for each in tmp_path.iterdir()]


def test_init_writes_into_no_file(tmp_path, capsys):
    """The name of one is refused as a mistake, and it stays as it is."""
    (tmp_path / "mine").write_text("mine")

    assert EXIT_USAGE == main(["init", str(tmp_path / "mine")])
    assert "mine: is a file; name another folder" in capsys.readouterr().err
    assert "mine" == (tmp_path / "mine").read_text()


# --- completion ---------------------------------------------------------------------------------


def completed(line: str, tmp_path: Path) -> list[str]:
    """Return what a shell is answered at the end of a line."""
    answer = tmp_path / "answer"
    environ = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line.encode())),
    }
    subprocess.run(COMMAND, env=environ, check=True, capture_output=True, text=True)
    return [word.rstrip() for word in answer.read_text().split("\n")]


@pytest.mark.long
def test_a_shell_completes_commands_options_and_runs(job, tmp_path):
    """
    The commands, those of a group, a command's options and choices, and the runs of the job named.
    """
    job.begin().request_run("night-1").request_run("night-2").request_run("day-1")

    assert {"status", "stop", "state"} <= set(completed("spark-stream st", tmp_path))
    assert {"take", "retain"} <= set(completed("spark-stream savepoint ", tmp_path))
    assert ["--run-id"] == completed("spark-stream status --ru", tmp_path)
    assert set(SHELLS) <= set(completed("spark-stream completion ", tmp_path))
    runs = completed(f"spark-stream status {job.root} --run-id n", tmp_path)
    assert ["night-1", "night-2"] == sorted(runs)
    assert [""] == completed(f"spark-stream status {tmp_path}/none --run-id n", tmp_path)


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_gets_its_function(capsys, shell):
    """It registers itself for the command; bash reads it without an error."""
    assert EXIT_OK == main(["completion", shell])
    script = capsys.readouterr().out
    assert "spark-stream" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


# --- the command that continues a request ----------------------------------------------------------

EVERY_OPTION = (
    "upgrade",
    "/jobs/old",
    "--entry=a job's.py:new",
    "--to=/jobs/new",
    "--param=text=it's 5",
    "--param=days:=[7, null]",
    "--secret-param=password=PASSWORD",
    "--interval",
    "2026-01-01T00:00:00Z",
    "2026-01-02T01:00:00+01:00",
    "--master=local[2]",
    "--until=stopped",
    "--at-end=suspend",
    "--trigger=90 seconds",
    "--target-batch-time=off",
    "--allow-non-restored-state",
    "--allow-mixed-results",
    "--allow-known-bug=SPARK-56280",
    "--allow-known-bug=SPARK-58904",
    "--restart=fixed-delay(attempts=3, delay=10 s)",
    "--failover=full",
    "--fails-as=jobs.BadRow=NON_RECOVERABLE",
    "--late=quarantine",
    "--late-limit=0.1%",
    "--missing-input=fail",
    "--trial-period=1 hour",
    "--progress-timeout=0.5",
    "--stop-timeout=60",
)


def test_the_command_of_a_request_gives_the_same_request():
    """Each option of an upgrade survives a shell, so a shown command continues what was begun."""
    parser = _parser("spark-stream", "upgrade", ())
    asked = read_options(parser.parse_args([*EVERY_OPTION]), UpgradeSpec)
    again = shlex.split(command_of(asked))

    flags = {option.flag for option in options_of(UpgradeSpec).values()}
    given = {each.partition("=")[0] for each in EVERY_OPTION}
    assert {"--conf"} == {flag for flag in flags if flag.startswith("-")} - given
    assert asked == read_options(parser.parse_args(again[1:]), UpgradeSpec)
    least = UpgradeSpec(job_dir="/jobs/old", to="/jobs/new", entry="new.py:daily")
    line = "spark-stream upgrade /jobs/old --entry new.py:daily --to /jobs/new"
    assert sorted(shlex.split(line)) == sorted(shlex.split(command_of(least)))


def test_a_shown_command_has_no_setting_of_spark(capsys):
    """Its value may be a password: the name is shown, and the command asks for the rest."""
    asked = UpgradeSpec(job_dir="/old", to="/new", entry="j.py:f", conf={"spark.key": "S3CRET"})
    shown = command_of(asked)

    assert "--conf spark.key" in shown
    assert "S3CRET" not in shown
    assert EXIT_USAGE == main(shlex.split(shown)[1:])
    assert "--conf 'spark.key': write --conf NAME=VALUE" in capsys.readouterr().err
