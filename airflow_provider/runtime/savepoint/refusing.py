"""What is found before anything is written is a refusal, whatever found it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from airflow_provider.runtime.errors import CheckpointError, ConfigError, RefusedCheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def refusing(where: str, doing: str) -> Iterator[None]:
    """Turn errors into those of a caller who has asked for what cannot be had.

    Args:
        where: the place that is asked for, named when the error names none.
        doing: ``read`` or ``written``.

    Raises:
        RefusedCheckpointError: a checkpoint, a savepoint or a document there is damaged, or of a
            form that is not known.
        ConfigError: this process has not the right.
    """
    try:
        yield
    except ConfigError:
        raise
    except CheckpointError as error:
        raise RefusedCheckpointError(str(error)) from error
    except PermissionError as error:
        msg = (
            f"{error.filename or where}: cannot be {doing}: {error.strerror or error}; use an "
            "account that may, or another place"
        )
        raise ConfigError(msg) from error
