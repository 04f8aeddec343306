"""Java is there and new enough, or one clear error."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.errors import EXIT_USAGE, ConfigError
from airflow_provider.runtime.spark.installation import check_java, find_java, java_major

SAYS = {
    8: 'openjdk version "1.8.0_392"\nOpenJDK Runtime Environment (build 1.8.0_392-b08)',
    11: 'openjdk version "11.0.21" 2023-10-17',
    17: 'openjdk version "17.0.15" 2025-04-15\nOpenJDK 64-Bit Server VM (build 17.0.15+6)',
    21: 'java version "21" 2023-09-19 LTS',
    25: 'openjdk version "25-ea" 2025-09-16',
}


def install(folder, text: str, *, exit_code: int = 0) -> dict[str, str]:
    """Put a ``java`` in *folder* that says *text* on stderr; return an environment with it."""
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\n/bin/cat >&2 <<'EOF'\n{text}\nEOF\nexit {exit_code}\n")
    java.chmod(0o755)
    return {"PATH": str(folder / "bin")}


@pytest.mark.parametrize(("major", "text"), SAYS.items())
def test_the_version_is_read(major, text):
    """Old and new ways of writing Java's version give its major number."""
    assert major == java_major(text)


@pytest.mark.parametrize("text", ["", "command not found", 'version "unknown"'])
def test_no_version_is_none(text):
    """What does not name a version has none."""
    assert java_major(text) is None


@pytest.mark.parametrize("major", [17, 21, 25])
def test_a_new_java_is_accepted(tmp_path, major):
    """Java 17 and newer pass."""
    check_java(install(tmp_path, SAYS[major]))


@pytest.mark.parametrize("major", [8, 11])
def test_an_old_java_is_refused(tmp_path, major):
    """An older Java is refused with its version, its location and what to install."""
    with pytest.raises(ConfigError) as raised:
        check_java(install(tmp_path, SAYS[major]))

    assert f"{tmp_path}/bin/java is Java {major}, Spark " in str(raised.value)
    assert " needs 17 or newer; " in str(raised.value)
    assert "openjdk-17-jre-headless" in str(raised.value)
    assert EXIT_USAGE == raised.value.exit_code


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_a_java_with_a_file_of_its_release_is_not_started(tmp_path, version):
    """A JVM for the version alone would cost each task a tenth of a second, also by a link."""
    environ = install(tmp_path / "jvm", "", exit_code=1)
    (tmp_path / "jvm" / "release").write_text(
        f'IMPLEMENTOR_VERSION="Temurin-8"\nJAVA_VERSION="{version}"\nJAVA_VERSION_DATE="2025"\n'
    )
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(tmp_path / "jvm" / "bin" / "java")

    check_java(environ)
    check_java({"PATH": str(tmp_path / "bin")})


def test_an_old_release_is_refused(tmp_path):
    """By its file; one that names no version is not believed, and Java is asked."""
    environ = install(tmp_path, SAYS[17])
    (tmp_path / "release").write_text('JAVA_VERSION="1.8.0_392"\n')
    with pytest.raises(ConfigError, match="bin/java is Java 8, Spark "):
        check_java(environ)

    (tmp_path / "release").write_text('JAVA_VERSION="unknown"\n')
    check_java(environ)


@pytest.mark.parametrize(("text", "exit_code"), [("garbage", 0), ("", 0), (SAYS[17], 1)])
def test_a_java_that_does_not_answer_is_refused(tmp_path, text, exit_code):
    """A ``java`` that fails or says nothing of use is refused, with what it said."""
    with pytest.raises(ConfigError, match="did not answer with a version"):
        check_java(install(tmp_path, text, exit_code=exit_code))


@pytest.mark.parametrize("environ", [{}, {"PATH": ""}, {"PATH": "/nowhere"}])
def test_no_java_is_refused(environ):
    """Without Java the error says what to install."""
    with pytest.raises(ConfigError, match="there is none on PATH; install a Java runtime 17"):
        find_java(environ)


def test_java_home_comes_first(tmp_path):
    """``JAVA_HOME`` decides, whatever is on ``PATH``, as it does for Spark."""
    on_path = install(tmp_path / "path", SAYS[8])
    install(tmp_path / "java-home", SAYS[17])
    environ = {**on_path, "JAVA_HOME": str(tmp_path / "java-home")}

    assert f"{tmp_path}/java-home/bin/java" == find_java(environ)
    check_java(environ)


@pytest.mark.parametrize("made", ["nothing", "an empty folder", "a file that cannot run"])
def test_a_broken_java_home_is_refused(tmp_path, made):
    """A ``JAVA_HOME`` without a runnable Java is named, even when another Java is on ``PATH``."""
    environ = {**install(tmp_path / "path", SAYS[17]), "JAVA_HOME": str(tmp_path / "java-home")}
    if made != "nothing":
        (tmp_path / "java-home" / "bin").mkdir(parents=True)
    if made == "a file that cannot run":
        (tmp_path / "java-home" / "bin" / "java").write_text("")

    with pytest.raises(ConfigError, match=r"JAVA_HOME is .*java-home, which has no bin/java"):
        check_java(environ)


def test_an_empty_java_home_is_none(tmp_path):
    """An empty ``JAVA_HOME`` is as good as none."""
    environ = {**install(tmp_path, SAYS[17]), "JAVA_HOME": ""}

    assert f"{tmp_path}/bin/java" == find_java(environ)
