"""Answers of HDFS, as errors that a caller can tell apart."""

from __future__ import annotations

import contextlib
import errno
import json

import fsspec
import pytest

from airflow_provider.extensions.hdfs.webhdfs import NameNode, explain, user_name
from airflow_provider.runtime.errors import ConfigError

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


@pytest.mark.parametrize(
    "message",
    [
        "No active and not excluded nodes contain this block",
        "Failed to find datanode, suggest to check cluster health. excludeDatanodes=null",
        "File /a could only be written to 0 of the 1 minReplication nodes. There are 0 datanode(s)",
        "Could not obtain block: BP-1:blk_1_1 file=/a",
    ],
)
def test_bytes_that_no_datanode_has_are_an_outage(message):
    """Hadoop calls it a plain IOException, which is also what a mistake is; its text tells them."""
    assert isinstance(explain(403, said("IOException", message), WHERE), ConnectionError)
    mistake = explain(403, said("IOException", "rename destination directory is not empty"), WHERE)
    assert isinstance(mistake, OSError)
    assert errno.EIO == mistake.errno
    assert not isinstance(mistake, ConnectionError)


@pytest.mark.parametrize("kind", ["IllegalArgumentException", "InvalidPathException"])
def test_a_path_that_hdfs_does_not_take(kind):
    """A path that HDFS cannot have is the caller's mistake."""
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
    """What a proxy or another server says is told by its status alone."""
    assert isinstance(explain(status, body, WHERE), error)


STATUS = {"pathSuffix": "a", "length": 3, "type": "FILE", "fileId": 7, "modificationTime": 8}


class Answer:
    """What requests gives for an answer of the namenode."""

    status_code = 200

    def __init__(self, body: bytes) -> None:
        self.body = body

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def iter_content(self, _size):
        yield self.body


@pytest.mark.parametrize("junk", [None, 5, "x", [], {}, {"FileStatus": 5}, -1, "../up", "a/b"])
@pytest.mark.parametrize("member", [None, "pathSuffix", "length", "type"])
def test_a_status_that_is_not_hdfs_is_one_error(monkeypatch, member, junk):
    """No value of an answer is a traceback, and no name of a listing leads out of its folder."""
    node = NameNode("other", 9870)
    one = junk if member is None else {**STATUS, member: junk}
    said = []
    for document in ({"FileStatus": one}, {"FileStatuses": {"FileStatus": [one]}}):
        answer = Answer(json.dumps(document).encode())
        monkeypatch.setattr(node, "_ask", lambda *_, answer=answer: answer)
        with contextlib.suppress(ConnectionError):
            said.append(node.status("/job"))
        with contextlib.suppress(ConnectionError):
            said += node.list("/job")

    assert [] == [found for found in said if {"/", ".."} & {*found.name, found.name}]
    is_right = (member, junk) in [("pathSuffix", "x"), ("length", 5)] or (
        member == "type" and isinstance(junk, str)
    )
    assert (2 if is_right else 0) == len(said)


def test_an_answer_too_deep_or_no_json_is_no_webhdfs(monkeypatch):
    """As a page of a proxy is."""
    node = NameNode("other", 9870)
    for body in (b"<html>", b"[" * 60_000):
        monkeypatch.setattr(node, "_ask", lambda *_, body=body: Answer(body))
        with pytest.raises(ConfigError, match="no WebHDFS answers there"):
            node.status("/job")
        assert isinstance(explain(502, body, WHERE), ConnectionError)


class Refused(Answer):
    """What requests gives for an answer to a request without a valid ticket."""

    status_code = 401

    def close(self):
        pass


def test_a_ticket_that_has_expired_is_an_outage_that_says_what_to_do(monkeypatch):
    """What renews it may be late; without Kerberos the same answer is a refusal that lasts."""
    node = NameNode("other", 9870)
    session = node._here().session
    monkeypatch.setattr(session, "request", lambda *_, **__: Refused(b""))
    with pytest.raises(PermissionError, match="HTTP 401"):
        node.status("/job")
    monkeypatch.setattr(session, "auth", object())
    with pytest.raises(ConnectionError, match="Kerberos ticket is missing or has expired.*kinit"):
        node.status("/job")


def test_the_user_is_the_one_of_hadoops_clients(monkeypatch):
    """Both sides write as one user: that of the variable, else of the process."""
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
