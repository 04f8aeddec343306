"""The only room that touches fsspec: places for documents with atomic put and put-if-absent."""

from airflow_provider.runtime.storage.base import Storage
from airflow_provider.runtime.storage.documents import Document
from airflow_provider.runtime.storage.opening import (
    has_escapes,
    local_path_of,
    open_storage,
    spark_url,
    supported_schemes,
)

__all__ = [
    "Document",
    "Storage",
    "has_escapes",
    "local_path_of",
    "open_storage",
    "spark_url",
    "supported_schemes",
]
