"""Answers of HDFS, as errors that a caller can tell apart."""

from __future__ import annotations

import errno
import json

import fsspec
import pytest

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.storage.webhdfs import NameNode, explain, user_name

WHERE = "webhdfs://namenode:9870/job/final.json"


def said(kind: str, message: str = "why\n\tat org.apache.hadoop") -> bytes:
    """Return the body of an error, as Hadoop sends it."""
    return json.dumps({"RemoteException": {"exception": kind, "message": message}}).encode()


@pytest.mark.parametrize(
    ("status", "kind", "error", "number"),
    [
        (404, "FileNotFoundException", FileNotFoundError, errno.ENOENT),
        (403, "ParentNotDirectoryException", FileNotFoundError, errno.ENOENT),
        (403, "FileAlreadyExistsException", FileExistsError, errno.EEXIST),
        (403, "AccessControlException", PermissionError, errno.EACCES),
        (403, "StandbyException", ConnectionError, errno.EHOSTUNREACH),
        (403, "SafeModeException", ConnectionError, errno.EHOSTUNREACH),
        (403, "DSQuotaExceededException", OSError, errno.EDQUOT),
        (500, "RuntimeException", OSError, errno.EIO),
    ],
)
def test_an_exception_of_hadoop_is_one_of_python(status, kind, error, number):
    """
    By its class a caller tells what is gone, taken, forbidden, or will be answered in a while.
    """
    explained = explain(status, said(kind), WHERE)

    assert isinstance(explained, error)
    assert isinstance(explained, OSError)
    assert number == explained.errno
    assert WHERE == explained.filename
    assert "\n" not in str(explained)


@pytest.mark.parametrize("kind", ["IllegalArgumentException", "InvalidPathException"])
def test_a_path_that_hdfs_does_not_take(kind):
    """
    A path that HDFS cannot have is the caller's mistake.
    """
    assert isinstance(explain(400, said(kind), WHERE), ConfigError)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (401, b"<html>Authentication required</html>", PermissionError),
        (403, b"", PermissionError),
        (404, b"<html>no such page</html>", ConfigError),
        (400, b'{"RemoteException": 7}', ConfigError),
        (502, b"bad gateway", ConnectionError),
    ],
)
def test_an_answer_that_is_not_of_hadoop(status, body, error):
    """
    What a proxy or another server says is told by its status alone.
    """
    assert isinstance(explain(status, body, WHERE), error)


def test_the_user_is_the_one_of_hadoops_clients(monkeypatch):
    """
    Both sides write as one user: that of the variable, else of the process.
    """
    monkeypatch.setenv("HADOOP_USER_NAME", "streams")
    assert "streams" == user_name()
    assert {"user.name": "streams"} == NameNode("by-variable", 9870)._filesystem.pars

    monkeypatch.delenv("HADOOP_USER_NAME")
    monkeypatch.setenv("LOGNAME", "somebody")
    assert "somebody" == user_name()


def test_fsspecs_settings_say_who_asks(monkeypatch):
    """
    A token, or Kerberos, in fsspec's configuration is used as it is, without a user beside it.
    """
    monkeypatch.setitem(fsspec.config.conf, "webhdfs", {"token": "a-token"})

    assert {"delegation": "a-token"} == NameNode("by-token", 9870)._filesystem.pars
