"""Headers of CSV files whose lines are read as they are: Spark checks them once a batch.

Spark compares a file's header with the schema where it reads the fields. Here it reads lines, and
drops the header. So the files of a batch are opened a second time, for their first record alone,
before the batch is published.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.row_checks.record_lines import option
from airflow_provider.extensions.row_checks.taps import BitTap
from airflow_provider.runtime.api.sources import SOURCE_OPTION
from airflow_provider.runtime.queries.plan import FILE_SCAN, leaves, option_of
from airflow_provider.runtime.spark.versions import class_named

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from airflow_provider.runtime.jobdir.epoch_documents import TapCount

_RELATION: Final = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
_OPEN_COST: Final = "spark.sql.files.openCostInBytes"


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeaderTap(BitTap):
    """A tap on records of CSV files that have headers.

    Attributes:
        schema: of the records.
        options: of the source.
    """

    schema: StructType
    options: Mapping[str, str]

    @property
    def checks_files(self) -> bool:
        return option(self.options, "enforceschema", default="false").lower() == "false"

    def count(self, execution: Any, rows: Callable[[], DataFrame | None]) -> TapCount:
        """Count, after Spark has found that the files' headers have the columns of the schema."""
        found = {self.source, f"{self.source}.also"} if self.checks_files else set()
        for leaf in leaves(execution.executedPlan()):
            if leaf.getClass().getSimpleName() == FILE_SCAN:
                relation = leaf.relation()
                if option_of(relation.options(), SOURCE_OPTION) in found:
                    self._check(relation)
        return super().count(execution, rows)

    def _check(self, relation: Any) -> None:
        """Let Spark read the first record of each file, with the source's own options."""
        session = self.given.sparkSession
        jvm: Any = session._jvm
        own = session._jsparkSession.cloneSession()
        conf = own.sessionState().conf()
        conf.setConfString(_OPEN_COST, str(conf.filesMaxPartitionBytes()))  # a file in each task
        options = {"header": "true", **self.options, "enforceSchema": "false"}
        files = class_named(jvm, _RELATION)(
            relation.location(),
            relation.partitionSchema(),
            jvm.org.apache.spark.sql.types.DataType.fromJson(self.schema.json()),
            relation.bucketSpec(),
            relation.fileFormat(),
            jvm.PythonUtils.toScalaMap(options),
            own,
        )
        every = own.baseRelationToDataFrame(files).limit(1)
        every.toJSON().count()
