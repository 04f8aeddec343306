"""Datasets that a job reads and writes, named as OpenLineage's naming specification says.

Names use only the location parts of an address: no password and no reader option.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict

from airflow_provider.runtime.api.sinks import Dataset
from airflow_provider.runtime.base.extensions import DATASETS, load_known
from airflow_provider.runtime.base.typed_json import shaped
from airflow_provider.runtime.errors.redaction import shown_address
from airflow_provider.runtime.storage.open import local_path_of, scheme_of

if TYPE_CHECKING:
    from collections.abc import Mapping


class _ReadLocation(TypedDict):
    name: str
    format: str
    path: str | None
    options: str


ReadLocationValues = Annotated[dict[str, Any], shaped(_ReadLocation)]


_POSTGRES_PORT: Final = "5432"
_STORES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "az": "abfss"}


def folder_dataset(url: str) -> Dataset:
    """Return the dataset of a folder: of a local one ``file`` and its path, else by its bucket."""
    local = local_path_of(url)
    if local is not None:
        return Dataset("file", local)
    scheme = _STORES.get(scheme_of(url), scheme_of(url))
    address = url if scheme.startswith("abfs") else shown_address(url)
    authority, _, path = address.partition("://")[2].partition("/")
    user, _, host = authority.rpartition("@")
    # In Azure's addresses the part before the @ is the container.
    location = f"{user.partition(':')[0]}@{host}" if scheme.startswith("abfs") and user else host
    return Dataset(f"{scheme}://{location}", path.strip("/") or "/")


def table_dataset(host: str, port: str | None, *names: str) -> Dataset:
    """Return the dataset of a table of PostgreSQL."""
    first = host.partition(",")[0]
    server = "localhost" if first.startswith(("/", "@")) else first
    number = (port or "").partition(",")[0] or _POSTGRES_PORT
    return Dataset(f"postgres://{server}:{number}", ".".join(names))


def datasets_of(data_format: str, options: Mapping[str, str]) -> tuple[Dataset, ...]:
    """Return the datasets that one of Spark's own writers reaches."""
    lower = {key.lower(): str(value) for key, value in options.items()}
    kind, location = data_format.lower(), lower.get("path")
    if kind in DATASETS:
        found: tuple[Dataset, ...] = load_known(DATASETS, kind)(lower)
        return found
    return (folder_dataset(location),) if location is not None and "/" in location else ()
