"""Reading a checkpoint where Spark cannot, without writing in it.

The metadata of some operators names the place of its schemas, and Spark reads them there; and it
finds no state at an address with spaces. Of such a checkpoint, and of one that was moved, a view is
made in a temporary folder: links to all of it, and that metadata with the view's own address.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.operators import readdress
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.storage.open import local_path_of, spark_url

if TYPE_CHECKING:
    from airflow_provider.runtime.state.contents import OperatorState, QueryState


def is_at_home(query: QueryState) -> bool:
    """Tell whether all that names a place names the one where the query's files lie."""
    here = _path_of(spark_url(query.checkpoint))
    return all(_path_of(root) == here for each in query.operators for root in each.roots)


def link_view(query: QueryState) -> str:
    """Make a view of a query's checkpoint that can be read where it is.

    Returns:
        The view's folder, which the caller removes.

    Raises:
        ConfigError: the checkpoint is not on a local filesystem.
    """
    local = local_path_of(query.checkpoint)
    if local is None:
        why = "Spark finds no state at an address with letters that a URI must escape"
        if not is_at_home(query):
            why = "it was moved, and its metadata names the place of its schemas"
        msg = f"{query.checkpoint}: {why}; restore or fork it into a job directory, and read that"
        raise ConfigError(msg)
    root = Path(tempfile.mkdtemp(prefix="spark-stream-state-"))
    try:
        moved = {each.id: each for each in query.operators if each.metadata_path is not None}
        _link_all(Path(local), root, but={"state"})
        _link_all(Path(local, "state"), root / "state", but={str(number) for number in moved})
        for number, operator in moved.items():
            _link_operator(Path(local), root, number, operator)
    except BaseException:
        shutil.rmtree(root)
        raise
    return str(root)


def _link_operator(checkpoint: Path, root: Path, number: int, operator: OperatorState) -> None:
    own, view = checkpoint / "state" / str(number), root / "state" / str(number)
    _link_all(own, view, but={"_metadata"})
    path = str(operator.metadata_path)
    written = root / path
    written.parent.mkdir(parents=True)
    data = (checkpoint / path).read_bytes()
    written.write_bytes(readdress(data, root=f"file:{root}", where=f"{checkpoint}/{path}"))


def _link_all(folder: Path, view: Path, *, but: set[str]) -> None:
    view.mkdir(exist_ok=True)
    for entry in os.scandir(folder):
        if entry.name not in but:
            (view / entry.name).symlink_to(entry.path)


def _path_of(address: str) -> str:
    """Return a local address as a path: Spark writes ``file:/…`` and ``file:///…``."""
    return re.sub(r"^file:/*", "/", address).rstrip("/")
