"""Jobs that leave traces in their JVM and look for those of others.

Each trace has a function that leaves it, and one that looks for it and returns something that JSON
can hold.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from airflow_provider.extensions.delta import delta
from airflow_provider.runtime import JobContext, files

sys.path.insert(0, str(Path(__file__).parent))

PLANTED = "planted"
LATE_S = 6
GLOBAL_VIEWS = "spark.sql.globalTempDatabase"
ENVIRONMENT = "java.lang.ProcessEnvironment"


def java(spark: Any, statements: str, result: str = "null") -> Any:
    """Run statements of Java in the JVM; return the value of the expression *result*."""
    script = spark._jvm.org.codehaus.janino.ScriptEvaluator()
    script.setReturnType(spark._jvm.java.lang.Class.forName("java.lang.Object"))
    script.cook(f"{statements}\nreturn {result};")
    gateway = spark.sparkContext._gateway
    return script.evaluate(gateway.new_array(spark._jvm.java.lang.Object, 0))


# --- what is put back ---------------------------------------------------------------------------


def plant_property(spark: Any) -> None:
    spark._jvm.java.lang.System.setProperty(PLANTED, "yes")
    spark._jvm.java.lang.System.clearProperty("java.vendor.url")


def look_property(spark: Any) -> Any:
    return [spark._jvm.java.lang.System.getProperty(name) for name in (PLANTED, "java.vendor.url")]


def plant_variable(spark: Any) -> None:
    field = _field(spark, ENVIRONMENT, "theUnmodifiableEnvironment").get(None)
    _field(spark, "java.util.Collections$UnmodifiableMap", "m").get(field).put("PLANTED", "yes")


def look_variable(spark: Any) -> Any:
    return [spark._jvm.java.lang.System.getenv("PLANTED"), os.environ.get("PLANTED")]


def _field(spark: Any, class_name: str, name: str) -> Any:
    field = spark._jvm.java.lang.Class.forName(class_name).getDeclaredField(name)
    field.setAccessible(True)
    return field


def plant_settings(spark: Any) -> None:
    spark.conf.set("spark.sql.planted", "yes")
    _default(spark).conf().set("spark.sql.planted", "yes")
    spark.sparkContext._jsc.sc().conf().set("spark.planted", "yes")
    spark.sparkContext._jsc.hadoopConfiguration().set(PLANTED, "yes")


def look_settings(spark: Any) -> Any:
    context = spark.sparkContext._jsc
    return [
        spark.conf.get("spark.sql.planted", None),
        _default(spark).conf().get("spark.sql.planted", "no"),
        context.sc().conf().get("spark.planted", "no"),
        context.hadoopConfiguration().get(PLANTED),
    ]


def _default(spark: Any) -> Any:
    return spark._jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()


def plant_listeners(spark: Any) -> None:
    streaming = "org.apache.spark.sql.streaming.StreamingQueryListener"
    events = ("QueryStarted", "QueryProgress", "QueryTerminated")
    methods = "".join(f"public void on{e}({streaming}.{e}Event e) {{}}\n" for e in events)
    listener = java(spark, "", f"new {streaming}() {{ {methods} }}")
    spark._jsparkSession.streams().addListener(listener)
    _default(spark).streams().addListener(listener)
    listener = java(spark, "", "new org.apache.spark.scheduler.SparkListener() {}")
    spark.sparkContext._jsc.sc().addSparkListener(listener)


def look_listeners(spark: Any) -> Any:
    context = spark.sparkContext._jsc.sc()
    return [
        len(spark._jsparkSession.streams().listListeners()),
        len(_default(spark).streams().listListeners()),
        sorted(each.getClass().getName() for each in context.listenerBus().listeners()),
    ]


def plant_views(spark: Any) -> None:
    spark.range(1).createOrReplaceTempView("planted_view")
    spark.range(1).createOrReplaceGlobalTempView("planted_view")
    spark.range(5).cache().count()
    spark.udf.register("planted_udf", lambda: 1)


def look_views(spark: Any) -> Any:
    return [
        [each.name for each in spark.catalog.listTables()],
        [each.name for each in spark.catalog.listTables(spark.conf.get(GLOBAL_VIEWS))],
        spark.sparkContext._jsc.getPersistentRDDs().size(),
        spark.catalog.functionExists("planted_udf"),
    ]


def plant_zone(spark: Any) -> None:
    util = spark._jvm.java.util
    util.TimeZone.setDefault(util.TimeZone.getTimeZone("Asia/Tokyo"))
    util.Locale.setDefault(util.Locale.forLanguageTag("fr-FR"))
    kind = util.Locale.Category.valueOf("FORMAT")
    util.Locale.setDefault(kind, util.Locale.forLanguageTag("ja-JP"))


def look_zone(spark: Any) -> Any:
    util = spark._jvm.java.util
    kinds = [util.Locale.Category.valueOf(kind) for kind in ("DISPLAY", "FORMAT")]
    locales = [util.Locale.getDefault(kind).toLanguageTag() for kind in kinds]
    return [util.TimeZone.getDefault().getID(), *locales]


def plant_log(spark: Any) -> None:
    log4j = spark._jvm.org.apache.logging.log4j
    context = log4j.LogManager.getContext(False)  # noqa: FBT003 - Java has no names
    appender = log4j.core.appender.NullAppender.createAppender(PLANTED)
    context.getConfiguration().addAppender(appender)
    context.getConfiguration().getRootLogger().addAppender(appender, None, None)
    log4j.core.config.Configurator.setLevel("planted.logger", log4j.Level.TRACE)
    spark.sparkContext.setLogLevel("ERROR")


def look_log(spark: Any) -> Any:
    log4j = spark._jvm.org.apache.logging.log4j
    found = log4j.LogManager.getContext(False).getConfiguration()  # noqa: FBT003 - the same
    return [
        sorted(map(str, found.getAppenders().keySet())),
        sorted(map(str, found.getLoggers().keySet())),
        str(found.getRootLogger().getLevel()),
    ]


def plant_file(spark: Any) -> None:
    folder = Path(spark._jvm.java.lang.System.getProperty("java.io.tmpdir"))
    (folder / PLANTED).mkdir()
    (folder / PLANTED / "file").touch()


def look_file(spark: Any) -> Any:
    return (Path(spark._jvm.java.lang.System.getProperty("java.io.tmpdir")) / PLANTED).exists()


def plant_hadoop(spark: Any) -> None:
    _local(spark).getConf().set("planted.in.cache", "yes")
    user = spark._jvm.org.apache.hadoop.security.UserGroupInformation
    user.setLoginUser(user.createRemoteUser(PLANTED))


def look_hadoop(spark: Any) -> Any:
    user = spark._jvm.org.apache.hadoop.security.UserGroupInformation
    return [user.getLoginUser().getUserName(), _local(spark).getConf().get("planted.in.cache")]


def _local(spark: Any) -> Any:
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    return spark._jvm.org.apache.hadoop.fs.FileSystem.get(spark._jvm.java.net.URI("file:///"), conf)


def plant_static_fields(spark: Any) -> None:
    net = spark._jvm.java.net
    net.HttpURLConnection.setFollowRedirects(False)
    net.CookieHandler.setDefault(net.CookieManager())
    spark._jvm.javax.net.ssl.SSLContext.getDefault()
    logging = spark._jvm.java.util.logging
    logging.Logger.getLogger(PLANTED).setLevel(logging.Level.FINEST)


def look_static_fields(spark: Any) -> Any:
    net = spark._jvm.java.net
    fields = [_field(spark, "javax.net.ssl.SSLContext", "defaultContext").get(None)]
    fields += [net.CookieHandler.getDefault()]
    level = spark._jvm.java.util.logging.Logger.getLogger(PLANTED).getLevel()
    return [
        net.HttpURLConnection.getFollowRedirects(),
        [each is not None for each in fields],
        str(level),
    ]


TRACES: dict[str, tuple[Callable[[Any], None], Callable[[Any], Any]]] = {
    "property": (plant_property, look_property),
    "variable": (plant_variable, look_variable),
    "settings": (plant_settings, look_settings),
    "listeners": (plant_listeners, look_listeners),
    "views": (plant_views, look_views),
    "zone": (plant_zone, look_zone),
    "log": (plant_log, look_log),
    "file": (plant_file, look_file),
    "hadoop": (plant_hadoop, look_hadoop),
    "static fields": (plant_static_fields, look_static_fields),
}


# --- what the JVM is retired for ----------------------------------------------------------------


def late_write(target: Path) -> str:
    """Return Java that writes a file after a while, for a method ``run``."""
    return (
        f"public void run() {{ try {{ Thread.sleep({LATE_S}000L);"
        f' new java.io.FileOutputStream("{target}").close(); }} catch (Exception e) {{}} }}'
    )


def hold_thread(spark: Any, target: Path) -> None:
    java(spark, f"new Thread() {{ {late_write(target)} }}.start();")


def hold_pooled_thread(spark: Any, target: Path) -> None:
    task = f"new Runnable() {{ {late_write(target)} }}"
    java(spark, f"java.util.concurrent.Executors.newFixedThreadPool(1).execute({task});")


def hold_timer(spark: Any, target: Path) -> None:
    task = f"new java.util.TimerTask() {{ {late_write(target)} }}"
    java(spark, f"new java.util.Timer(true).schedule({task}, 500L);")


def hold_scheduled(spark: Any, target: Path) -> None:
    task = f"new Runnable() {{ {late_write(target)} }}"
    pool = "new java.util.concurrent.ScheduledThreadPoolExecutor(1)"
    java(spark, f"{pool}.schedule({task}, 1L, java.util.concurrent.TimeUnit.SECONDS);")


def hold_common_pool(spark: Any, target: Path) -> None:
    task = f"new Runnable() {{ {late_write(target)} }}"
    java(spark, f"java.util.concurrent.ForkJoinPool.commonPool().execute({task});")


def hold_process(spark: Any, target: Path) -> None:
    command = f'new String[] {{"sh", "-c", "sleep {LATE_S}; touch {target}"}}'
    java(
        spark,
        f"try {{ Runtime.getRuntime().exec({command}); }} catch (java.io.IOException e) {{"
        " throw new RuntimeException(e); }",
    )


def add_jar(spark: Any, target: Path) -> None:
    jar = target.with_suffix(".jar")
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("planted", "yes")
    spark.sql(f"ADD JAR '{jar}'")


def exchange_output(spark: Any, _: Path) -> None:
    java(spark, "System.setOut(System.err);")


def exchange_handler(spark: Any, _: Path) -> None:
    kind = "Thread.UncaughtExceptionHandler"
    method = "public void uncaughtException(Thread t, Throwable e) {}"
    java(spark, f"Thread.setDefaultUncaughtExceptionHandler(new {kind}() {{ {method} }});")


def add_resource(spark: Any, _: Path) -> None:
    spark._jvm.org.apache.hadoop.conf.Configuration.addDefaultResource(f"{PLANTED}.xml")


def exchange_proxies(spark: Any, _: Path) -> None:
    net = spark._jvm.java.net
    net.ProxySelector.setDefault(net.ProxySelector.of(None))


def trust_nobody(spark: Any, target: Path) -> None:
    spark._jvm.java.lang.System.setProperty("javax.net.ssl.trustStore", str(target))


def remember_hosts(spark: Any, _: Path) -> None:
    spark._jvm.java.security.Security.setProperty("networkaddress.cache.ttl", "1")


HELD: dict[str, Callable[[Any, Path], None]] = {
    "thread": hold_thread,
    "pooled thread": hold_pooled_thread,
    "timer": hold_timer,
    "scheduled": hold_scheduled,
    "common pool": hold_common_pool,
    "process": hold_process,
    "jar": add_jar,
    "output": exchange_output,
    "handler": exchange_handler,
    "resource": add_resource,
    "proxies": exchange_proxies,
    "property": trust_nobody,
    "security": remember_hosts,
    "nothing": lambda *_: None,
}


# --- jobs ---------------------------------------------------------------------------------------


def look(ctx: JobContext) -> None:
    """Report every trace that is there."""
    _report(ctx)
    _few(ctx)


def plant(ctx: JobContext) -> None:
    """Leave every trace that is put back, and report them."""
    for plants, _ in TRACES.values():
        plants(ctx.spark)
    _report(ctx)
    _few(ctx)


def save(ctx: JobContext) -> None:
    """Make a table without a path and a file with a relative one, and report their folders."""
    spark: Any = ctx.spark
    spark.sql("CREATE TABLE planted_table AS SELECT 1 AS v")
    spark.range(1).write.mode("overwrite").parquet("written")
    described = spark.sql("DESCRIBE FORMATTED planted_table").where("col_name = 'Location'")
    found = {
        "table": described.first()["data_type"],
        "tables": [each.name for each in spark.catalog.listTables()],
        "read": spark.read.parquet("written").inputFiles()[0],
        "derby": spark._jvm.java.lang.System.getProperty("derby.system.home"),
        "local": sorted(each.name for each in Path("local").glob("blockmgr-*")),
    }
    Path(ctx.params["report"]).write_text(json.dumps(found))
    _few(ctx)


def hold(ctx: JobContext) -> None:
    """Leave what the JVM is retired for."""
    if ctx.mode == "BATCH":
        HELD[ctx.params["what"]](ctx.spark, Path(ctx.params["target"]))
    _report(ctx)
    _few(ctx)


def keep_secret(ctx: JobContext) -> None:
    """Hold a secret parameter until the gate is open."""
    salt, gate = ctx.params["salt"], Path(ctx.params["gate"])
    Path(ctx.params["report"]).write_text(str(len(salt)))
    while not gate.exists():
        time.sleep(0.05)
    _few(ctx)


def tell(ctx: JobContext) -> None:
    """Report the texts of the JVM and of this process in which a secret could be."""
    Path(ctx.params["report"]).write_text(json.dumps(_texts(ctx.spark)))
    _few(ctx)


def _texts(spark: Any) -> list[str]:
    context, system = spark.sparkContext._jsc, spark._jvm.java.lang.System
    return [
        str(dict(os.environ)),
        str(sys.argv),
        system.getenv().toString(),
        system.getProperties().toString(),
        context.sc().conf().toDebugString(),
        str(context.hadoopConfiguration().getValByRegex(".*")),
    ]


def _report(ctx: JobContext) -> None:
    if "report" in ctx.params:
        Path(ctx.params["report"]).write_text(json.dumps(report(ctx.spark)))


def report(spark: Any) -> dict[str, Any]:
    """Return what there is of each trace."""
    return {name: looks(spark) for name, (_, looks) in TRACES.items()}


def _few(ctx: JobContext) -> None:
    rows = ctx.read("rows", format="csv", path=ctx.params["input"], schema="v string", bounded=True)
    ctx.write("out", rows.select(F.upper("v").alias("v")), to=files(ctx.params["output"]))


# --- a thousand runs ----------------------------------------------------------------------------


def soaked(ctx: JobContext) -> None:
    """Report what others have left, leave every trace, and run a job of ``jobs.py``."""
    found = Path(ctx.params["report"])
    if not found.exists():
        texts = " ".join(_texts(ctx.spark))
        own = {
            "found": report(ctx.spark),
            "salts": sorted(set(re.findall(r"salt-\d+-of-a-run", texts))),
            "measures": _measures(ctx.spark),
        }
        for plants, _ in TRACES.values():
            plants(ctx.spark)
        unfinished = found.with_suffix(".part")
        unfinished.write_text(json.dumps(own))
        unfinished.replace(found)
    import jobs  # here: it needs half a second, and only these runs have it

    name, _ = ctx.params["job"], ctx.params["salt"]
    ours = {"delta": _to_delta, "raising": _raising}
    (ours.get(name) or getattr(jobs, name))(ctx)


def _to_delta(ctx: JobContext) -> None:
    import jobs

    ctx.write("out", jobs.tumbling(jobs.events(ctx), "k"), to=delta(ctx.params["output"]))


def _raising(ctx: JobContext) -> None:
    raise ZeroDivisionError(f"no such day in {ctx.run_id}")


OF_A_MINUTE = ("broadcast-exchange-", "shuffle-exchange-", "ResultQueryStageExecution-")
"""Threads of Spark's pools that begin one for each task, and end each a minute after its last."""


def _measures(spark: Any) -> dict[str, int]:
    lang = spark._jvm.java.lang
    lang.System.gc()
    beans = lang.management.ManagementFactory
    pools = {pool.getName(): pool for pool in beans.getMemoryPoolMXBeans()}
    jvm = lang.ProcessHandle.current().pid()
    threads = [each.getName() for each in lang.Thread.getAllStackTraces().keySet()]
    return {
        "jvm": jvm,
        "parent": os.getppid(),
        "heap_kib": beans.getMemoryMXBean().getHeapMemoryUsage().getUsed() >> 10,
        "metaspace_kib": pools["Metaspace"].getUsage().getUsed() >> 10,
        "threads": sum(not name.startswith(OF_A_MINUTE) for name in threads),
        "files": beans.getOperatingSystemMXBean().getOpenFileDescriptorCount(),
        "rss_kib": psutil.Process(jvm).memory_info().rss >> 10,
        "parent_kib": psutil.Process(os.getppid()).memory_info().rss >> 10,
    }
