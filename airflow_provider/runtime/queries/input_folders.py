"""Folders of a job's input, on any filesystem that Spark reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.failures.classify import classify, refusal_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyspark.sql import SparkSession

_ABSENT = "java.io.FileNotFoundException"


def spark_listing(spark: SparkSession) -> Callable[[str], Collection[str]]:
    """Return a function that returns the names in a folder of Spark's address, none if absent."""

    def names_in(folder: str) -> Collection[str]:
        from py4j.protocol import Py4JJavaError

        jvm: Any = spark._jvm
        try:
            path = jvm.org.apache.hadoop.fs.Path(folder)
            files = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
            found = jvm.org.apache.hadoop.fs.FileUtil.stat2Paths(files.listStatus(path))
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() == _ABSENT:
                return ()
            why = classify(error).explanation.what
            raise refusal_of(error, f"{folder}: Spark cannot list this input: {why}") from error
        # As one text: a call for each of many files would take minutes.
        paths = str(jvm.scala.Predef.genericWrapArray(found).mkString("\n"))
        return {each.rpartition("/")[2] for each in paths.split("\n")}

    return names_in
