"""Savepoints: taken from outside without a pause, restored anywhere, kept and disposed of."""

from airflow_provider.runtime.errors import refusing
from airflow_provider.runtime.jobdir.checkpoint_places import RestoreRecord
from airflow_provider.runtime.jobdir.run_spec import check_partitions
from airflow_provider.runtime.savepoint.anew import check_not_parted, check_not_parted_in
from airflow_provider.runtime.savepoint.catalog import (
    Leftover,
    Savepoint,
    find_savepoints,
    open_savepoint,
)
from airflow_provider.runtime.savepoint.holding import held_savepoint
from airflow_provider.runtime.savepoint.keeping import (
    Retention,
    collect_garbage,
    collect_leftover,
    dispose,
    retain,
)
from airflow_provider.runtime.savepoint.records import (
    MANIFEST,
    ORIGINS,
    REWIND_PREFIX,
    SERIES,
    SavepointRecord,
)
from airflow_provider.runtime.savepoint.repartitioning import Repartition, check_repartitionable
from airflow_provider.runtime.savepoint.restores import (
    Restores,
    check_no_open_restore,
    guard_restores,
)
from airflow_provider.runtime.savepoint.restoring import (
    CLAIM_MODES,
    begin_restore,
    check_restorable,
    finish_restore,
)
from airflow_provider.runtime.savepoint.sources import checkpoint_source, job_source
from airflow_provider.runtime.savepoint.starting import StartingPoint, match_queries
from airflow_provider.runtime.savepoint.taking import ALIGNED_TIMEOUT_S, take_savepoint
from airflow_provider.runtime.savepoint.verifying import verify_savepoint

__all__ = [
    "ALIGNED_TIMEOUT_S",
    "CLAIM_MODES",
    "MANIFEST",
    "ORIGINS",
    "REWIND_PREFIX",
    "SERIES",
    "Leftover",
    "Repartition",
    "RestoreRecord",
    "Restores",
    "Retention",
    "Savepoint",
    "SavepointRecord",
    "StartingPoint",
    "begin_restore",
    "check_no_open_restore",
    "check_not_parted",
    "check_not_parted_in",
    "check_partitions",
    "check_repartitionable",
    "check_restorable",
    "checkpoint_source",
    "collect_garbage",
    "collect_leftover",
    "dispose",
    "find_savepoints",
    "finish_restore",
    "guard_restores",
    "held_savepoint",
    "job_source",
    "match_queries",
    "open_savepoint",
    "refusing",
    "retain",
    "take_savepoint",
    "verify_savepoint",
]
