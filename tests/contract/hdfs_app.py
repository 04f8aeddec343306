"""The part of WebHDFS that a storage uses, in a folder: ``HDFS_FOLDER`` or one that is removed.

One app is the namenode and a datanode, as two servers are that share a port: the namenode redirects
to the name ``localhost``, with ``namenoderpcaddress`` in the query as a datanode gets it. It holds
what HDFS' namespace promises, by the messages and exceptions of its documents: a file that is created
has its name at once, and a part of its bytes if the writer breaks off; ``overwrite=false`` and a
rename with ``renameoptions=NONE`` refuse a name that is taken, ``OVERWRITE`` replaces a file and no
folder that has something in it; a rename without options moves a file into a folder of that name;
a rename makes no folder; a folder that is not empty is only removed with all in it; no name has a
colon.

``httpfs`` makes it a gateway of that kind: it does not read ``renameoptions``.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from werkzeug.wrappers import Request, Response

PREFIX = "/webhdfs/v1"
BLOCK = 128 * 2**20
# As `NamenodeWebHdfsMethods` says it, and HDFS 3.4 and 3.5 did.
NO_DATANODE = {
    "OPEN": "No active and not excluded nodes contain this block",
    "CREATE": "Failed to find datanode, suggest to check cluster health. excludeDatanodes=null",
}


class RemoteError(Exception):
    """An exception of Hadoop, with the status that WebHDFS gives it."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def status(self) -> int:
        by_kind = {"FileNotFoundException": 404, "IllegalArgumentException": 400}
        return by_kind.get(self.kind, 403)  # any other IOException


class App:
    def __init__(self, *, httpfs: bool = False) -> None:
        self.httpfs = httpfs
        self.own = tempfile.TemporaryDirectory(prefix="hdfs-")
        self.root = Path(os.environ.get("HDFS_FOLDER") or self.own.name)

    def close(self) -> None:
        self.own.cleanup()

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def __call__(self, environ, start_response):
        request = Request(environ)
        try:
            answered = self.answer(request)
        except RemoteError as error:
            told = {"exception": error.kind, "javaClassName": error.kind, "message": str(error)}
            answered = document({"RemoteException": told}, error.status)
        return answered(environ, start_response)

    def answer(self, request: Request) -> Response:
        path = request.path.removeprefix(PREFIX).rstrip("/") or "/"
        operation = request.args["op"].upper()
        if not request.path.startswith(PREFIX):
            return Response("no such page", 404)
        if any(":" in name or name == "." for name in path.split("/")):
            raise RemoteError("IllegalArgumentException", f"Invalid path name {path}")
        if operation in {"CREATE", "OPEN", "APPEND"} and "namenoderpcaddress" not in request.args:
            return self.redirect(request, path, operation)
        handle = getattr(self, f"do_{operation.lower()}", None)
        if handle is None:
            raise RemoteError("UnsupportedOperationException", f"{operation} is not supported")
        return handle(request, path)

    def redirect(self, request: Request, path: str, operation: str) -> Response:
        if operation == "OPEN":
            self.file(path)
        if "storage.no_datanode" in request.environ:
            raise RemoteError("IOException", NO_DATANODE[operation])
        given = {**request.args, "namenoderpcaddress": "127.0.0.1:8020"}
        port = request.host.rpartition(":")[2]
        quoted = request.environ["RAW_URI"].partition("?")[0]
        where = f"http://localhost:{port}{quoted}?{urlencode(given)}"
        return Response(
            status=307, headers={"Location": where}, mimetype="application/octet-stream"
        )

    # --- datanode ---------------------------------------------------------------------------------

    def do_create(self, request: Request, path: str) -> Response:
        file = self.at(path)
        if file.is_dir():
            raise RemoteError("FileAlreadyExistsException", f"{path} already exists as a directory")
        if file.exists() and request.args.get("overwrite", "false") != "true":
            said = f"{path} for client 127.0.0.1 already exists"
            raise RemoteError("FileAlreadyExistsException", said)
        self.make_folders(parent(path))
        body = request.get_data()
        is_cut = "storage.cut" in request.environ  # the writer broke off in the middle
        file.unlink(missing_ok=True)  # another inode, as in HDFS
        file.write_bytes(body[: len(body) // 2] if is_cut else body)
        return Response(status=201, headers={"Location": f"hdfs://127.0.0.1:8020{path}"})

    def do_open(self, _request: Request, path: str) -> Response:
        return Response(self.file(path).read_bytes(), mimetype="application/octet-stream")

    # --- namenode ---------------------------------------------------------------------------------

    def do_getfilestatus(self, _request: Request, path: str) -> Response:
        return document({"FileStatus": self.status(path, "")})

    def do_liststatus(self, _request: Request, path: str) -> Response:
        return document({"FileStatuses": {"FileStatus": self.listed(path)}})

    def do_delete(self, request: Request, path: str) -> Response:
        location = self.at(path)
        if not location.exists():
            return document({"boolean": False})
        if not location.is_dir():
            location.unlink()
        elif request.args.get("recursive", "false") == "true":
            shutil.rmtree(location)
        elif any(location.iterdir()):
            raise RemoteError("PathIsNotEmptyDirectoryException", f"{path} is non empty")
        else:
            location.rmdir()
        return document({"boolean": True})

    def do_rename(self, request: Request, path: str) -> Response:
        target = request.args["destination"]
        options = set(request.args.get("renameoptions", "").split(",")) - {""}
        if not options or self.httpfs:
            return document({"boolean": self.rename_as_shells_do(path, target)})
        if not self.at(path).exists():
            raise RemoteError("FileNotFoundException", f"rename source {path} is not found.")
        if self.at(target).exists():
            self.check_replaced(path, target, is_allowed="OVERWRITE" in options)
        elif not self.at(parent(target)).is_dir():
            said = f"rename destination parent {parent(target)} not found."
            raise RemoteError("FileNotFoundException", said)
        os.replace(self.at(path), self.at(target))
        return Response(status=200, mimetype="application/octet-stream")

    # --- the namespace ----------------------------------------------------------------------------

    def check_replaced(self, path: str, target: str, *, is_allowed: bool) -> None:
        """Refuse what `FSDirRenameOp.validateRenameOverwrite` refuses."""
        source, there = self.at(path), self.at(target)
        if source.is_dir() != there.is_dir():
            raise RemoteError("IOException", f"Source {path} and {target} must both be directories")
        if not is_allowed:
            said = f"rename destination {target} already exists"
            raise RemoteError("FileAlreadyExistsException", said)
        if there.is_dir() and any(there.iterdir()):
            raise RemoteError("IOException", f"rename destination directory is not empty: {target}")

    def rename_as_shells_do(self, path: str, target: str) -> bool:
        source, there = self.at(path), self.at(target)
        if there.is_dir():
            there /= source.name
        if not source.exists() or there.exists() or not there.parent.is_dir():
            return False
        source.rename(there)
        return True

    def make_folders(self, path: str) -> None:
        try:
            self.at(path).mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            said = f"{path} (is not a directory)"
            raise RemoteError("ParentNotDirectoryException", said) from error

    def file(self, path: str) -> Path:
        self.status(path, "")
        if self.at(path).is_dir():
            raise RemoteError("FileNotFoundException", f"Path is not a file: {path}")
        return self.at(path)

    def listed(self, path: str) -> list[dict[str, Any]]:
        own = self.status(path, "")
        if own["type"] == "FILE":
            return [own]
        return [self.status(f"{path}/{name}", name) for name in sorted(os.listdir(self.at(path)))]

    def status(self, path: str, suffix: str) -> dict[str, Any]:
        if self.at(parent(path)).is_file():
            said = f"{parent(path)} (is not a directory)"
            raise RemoteError("ParentNotDirectoryException", said)
        if not self.at(path).exists():
            raise RemoteError("FileNotFoundException", f"File does not exist: {path}")
        found, is_folder = self.at(path).stat(), self.at(path).is_dir()
        return {
            "accessTime": 0,
            "blockSize": 0 if is_folder else BLOCK,
            "childrenNum": len(os.listdir(self.at(path))) if is_folder else 0,
            "fileId": found.st_ino,
            "group": "supergroup",
            "length": 0 if is_folder else found.st_size,
            "modificationTime": found.st_mtime_ns // 1_000_000,
            "owner": getpass.getuser(),
            "pathSuffix": suffix,
            "permission": "755" if is_folder else "644",
            "replication": 0 if is_folder else 1,
            "storagePolicy": 0,
            "type": "DIRECTORY" if is_folder else "FILE",
        }


def parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def document(content: dict[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(content), status, mimetype="application/json")
