"""Environment of a JVM that runs already: what it reads, and what the processes it starts inherit.

A warm driver's JVM has the environment of its pool, and Spark's Python workers inherit it. A cold
driver's JVM would have that of the run. Spark's own way to give workers variables, those of each
Python function, sends them with every task to every machine, secrets among them. So the JVM's own
table is changed instead: nothing leaves the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

_OF_THIS_RUN = "SPARK_STREAM_WARM_RUN"


def replace_environment(
    spark: SparkSession, before: Mapping[str, str], after: Mapping[str, str]
) -> None:
    """Give the JVM, and the processes that it starts from now on, the variables *after*.

    Args:
        spark: a session in the JVM.
        before: the variables that this process gave the JVM; those that *after* lacks are removed.
            Others, which ``spark-submit`` has set, stay.
        after: the new variables.
    """
    table = environment_table(spark)
    for name in before.keys() - after.keys():
        table.remove(name)
    for name, value in after.items():
        table.put(name, value)
    if str(spark.sparkContext.master).startswith("local"):
        # Spark gives a task an idle Python worker whose function had the same variables: without
        # this one, a worker of the warm-up, which has the pool's environment.
        spark.sparkContext.environment[_OF_THIS_RUN] = "1"


def environment_table(spark: SparkSession) -> Any:
    """Return Java's table behind ``System.getenv()``, which ``ProcessBuilder`` copies.

    Spark starts each JVM with the options that open these classes (``JavaModuleOptions``).

    Raises:
        Exception: this JVM keeps it elsewhere, or closed.
    """
    java: Any = spark._jvm.java  # type: ignore[union-attr]

    def value_of(class_name: str, field_name: str, owner: Any) -> Any:
        field = java.lang.Class.forName(class_name).getDeclaredField(field_name)
        field.setAccessible(True)
        return field.get(owner)

    view = value_of("java.lang.ProcessEnvironment", "theUnmodifiableEnvironment", None)
    return value_of("java.util.Collections$UnmodifiableMap", "m", view)
