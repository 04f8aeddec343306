"""Maturity: what each component was tested with; ``scripts/maturity.py`` makes a table of it.

A component that has met stand-ins only, or nothing, is named in a run's log when the run uses it.
"""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

TABLE: Final = "docs/index.md#maturity"


class Status(enum.Enum):
    """How far a component may be trusted."""

    TESTED = "tested"
    EXPERIMENTAL = "experimental"
    UNTESTED = "not tested"


class Component(NamedTuple):
    """A component of the systems that people run.

    Attributes:
        name: as the table has it.
        tested_with: what its tests run with, and what is done to it.
        status: what follows.
        schemes: of addresses that are in it.
        masters: how Spark's master URLs of it begin.
    """

    name: str
    tested_with: str
    status: Status
    schemes: tuple[str, ...] = ()
    masters: tuple[str, ...] = ()


COMPONENTS: Final = (
    Component(
        "bounded jobs and streams, final checkpoint, savepoints, replay",
        "real Spark 3.5, 4.0, 4.1, 4.2 and 4.3, drivers killed at every step",
        Status.TESTED,
    ),
    Component(
        "Airflow 3.1, 3.2, 3.3",
        "real Airflow, PostgreSQL, Chromium; workers and triggerers killed",
        Status.TESTED,
    ),
    Component(
        "LocalExecutor, CeleryExecutor",
        "real ones, with Redis and two workers; workers killed and shut down",
        Status.TESTED,
    ),
    Component(
        "KubernetesExecutor",
        "Kubernetes 1.34.4 of one node, a pod deleted; what a pod runs, in a PID namespace",
        Status.EXPERIMENTAL,
    ),
    Component("managed Airflow: MWAA, Composer, Astronomer", "nothing", Status.UNTESTED),
    Component(
        "job directory and sinks on a local disk",
        "real filesystems, with loss of power",
        Status.TESTED,
        schemes=("file",),
    ),
    Component(
        "NFS, SMB and other mounts",
        "a try at the first write; no real server",
        Status.EXPERIMENTAL,
    ),
    Component(
        "S3",
        "SeaweedFS 4.53 with Spark on it, drivers and server killed; moto; never Amazon's own",
        Status.TESTED,
        schemes=("s3", "s3a"),
    ),
    Component(
        "Google Cloud Storage, Azure",
        "a server of this project, Azurite; never Spark on a bucket",
        Status.EXPERIMENTAL,
        schemes=("gs", "gcs", "abfs", "abfss", "az"),
    ),
    Component(
        "`delta`, `iceberg`, `postgres`",
        "a real PostgreSQL, Iceberg's REST catalog 1.11.0, Hive's metastore 2.3.10",
        Status.TESTED,
    ),
    Component(
        "Kafka: both sources, the sink",
        "Apache Kafka 4.4.0 and 3.9.1, one broker and three; brokers and drivers killed",
        Status.TESTED,
    ),
    Component(
        "standalone cluster", "a real master and worker", Status.TESTED, masters=("spark://",)
    ),
    Component(
        "HDFS",
        "Apache Hadoop 3.5.0 and 3.4.2, namenode and datanode killed; renewed and expired tickets",
        Status.EXPERIMENTAL,
        schemes=("webhdfs",),
    ),
    Component(
        "YARN",
        "Apache Hadoop 3.5.0, one node; drivers, an executor and its servers killed; Airflow",
        Status.EXPERIMENTAL,
        masters=("yarn",),
    ),
    Component(
        "SparkApplications",
        "Kubeflow's operator 2.5.2 and Spark in its pods, each part killed; Apache's CRD 1.0 alone",
        Status.EXPERIMENTAL,
    ),
    Component(
        "Kubernetes",
        "Kubernetes 1.34.4 of one node, Spark in its pods in both deploy modes, each part killed",
        Status.TESTED,
        masters=("k8s://",),
    ),
    Component(
        "Livy",
        "Apache Livy 0.7.1 without a login, Spark on its machine; answers lost",
        Status.TESTED,
    ),
    Component("EMR Serverless", "stand-ins such as moto; never Amazon's own", Status.EXPERIMENTAL),
)


def unproven(*, scheme: str = "", master: str | None = None) -> list[Component]:
    """Return the components behind an address's scheme and Spark's master that are not tested."""
    used = (
        component
        for component in COMPONENTS
        if scheme in component.schemes or (master and master.startswith(component.masters))
    )
    return [component for component in used if component.status is not Status.TESTED]


def describe_use(component: Component) -> str:
    """Return the line for the log of what uses it."""
    return (
        f"{component.name}: {component.status.value}, tested with {component.tested_with} ({TABLE})"
    )


def describe_all() -> str:
    """Return the lines that end a program's help: what is not tested with the real thing."""
    lines = (
        f"  {component.name}: {component.status.value} ({component.tested_with})"
        for component in COMPONENTS
        if component.status is not Status.TESTED
    )
    return "\n".join(["not tested with the real systems:", *lines])


def table() -> str:
    """Return the table of all components, in Markdown."""
    rows = (f"| {each.name} | {each.tested_with} | {each.status.value} |" for each in COMPONENTS)
    return "\n".join(["| component | tested with | status |", "|---|---|---|", *rows, ""])
