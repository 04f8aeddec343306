"""Scratch folder of a comparison: removed at its end, or by the next one if it was killed."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base.host import ProcessIdentity, identify_this
from airflow_provider.runtime.base.typed_json import Name
from airflow_provider.runtime.errors import ConfigError, SparkStreamError
from airflow_provider.runtime.storage.documents import Contents, Document
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

_PREFIX: Final = "spark-stream-comparison-"
_OWNER: Final = "owner.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScratchOwner(Document):
    """``owner.json`` of a scratch folder: its name, and the processes that use it."""

    CONTENTS = Contents.FACTS

    folder: Name
    owner: ProcessIdentity


@contextlib.contextmanager
def scratch_folder(parent: str | None, *, spark_master: str, jvm: int) -> Iterator[Path]:
    """Yield a new folder, and remove it at the end, however that comes.

    Args:
        parent: where it is made; None for this machine's folder of temporary files.
        spark_master: where Spark's tasks write to it.
        jvm: the process id of Spark's driver, which writes to it, too.

    Raises:
        ConfigError: *parent* is missing, or a cluster's machines would not see the folder.

    Crash safety: a killed process leaves the folder; the next comparison with the same *parent*
    removes it if its owner has certainly ended.
    """
    if parent is None and not spark_master.startswith("local"):
        raise ConfigError(
            f"Spark runs on {spark_master}, whose machines do not see a temporary folder of this "
            "one; give --scratch, a folder that all of them share"
        )
    above = Path(parent or tempfile.gettempdir())
    if not above.is_dir():
        raise ConfigError(f"--scratch {above}: there is no such folder; make it, or name another")
    _remove_abandoned(above)
    made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=above))
    try:
        owner = ScratchOwner(folder=made.name, owner=identify_this(jvm))
        owner.put(open_storage(str(made)), _OWNER)
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        if made.exists():
            log.warning("%s: not all of it could be removed; remove it", made)


def _remove_abandoned(above: Path) -> None:
    for folder in sorted(above.glob(f"{_PREFIX}*")):
        if _is_abandoned(folder):
            log.info("%s: removed; the comparison that made it was killed", folder)
            shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Whether a comparison of this user has made the folder, and has certainly ended."""
    if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.geteuid():
        return False
    try:
        record = ScratchOwner.read(open_storage(str(folder)), _OWNER)
    except (OSError, SparkStreamError):
        return False
    return record is not None and record.folder == folder.name and record.owner.is_gone()
