"""Job directories that are not those in which tasks have begun their jobs, by Airflow's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.hooks.job_memory import identity_in, variable_of
from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.identity import check_remembered, lineage_of

if TYPE_CHECKING:
    from airflow_provider.runtime.jobdir.layout import JobDirectory


def lost_job(directory: JobDirectory) -> str | None:
    """Return that another job directory was at this address, and the ways out; None if not.

    Raises:
        OSError: the storage cannot be read.
        CorruptDocumentError: the identity there cannot be.
    """
    from airflow.models.variable import Variable
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(Variable).where(Variable.key == variable_of(directory.url))
        variable = session.scalar(query)
        stored = variable.val if variable is not None else None
    try:
        remembered = identity_in(read_json(stored or "null"))
    except ValueError:  # a person has edited it; a task says so
        return None
    if remembered is None:
        return None
    try:
        check_remembered(directory.url, remembered, lineage_of(directory.storage))
    except ConfigError as error:
        return str(error)
    return None
