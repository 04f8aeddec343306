"""Permissions of local files, set by Java instead of a process for each file.

Hadoop sets the permission of each file and directory that it makes. Without its native library,
which no package of PySpark contains, it starts ``chmod`` for that: some 200 times in a short run
with state, 4 ms of CPU time each. Java has a call for it. Hadoop chooses the class of a file system
by its scheme, so a class with that call is compiled with Janino, which Spark needs for its own
code, and takes the place of Hadoop's class for ``file``. A class that the user has set
(``fs.file.impl``) keeps its place.

The class also says why a directory cannot be made. Hadoop says only that "Mkdirs failed", of which
no rule of failures knows whether a retry may help.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_PACKAGE: Final = "airflow_provider.local"
_CLASS: Final = f"{_PACKAGE}.LocalFiles"
_SCHEME: Final = "file"
_HADOOP: Final = "org.apache.hadoop.fs.LocalFileSystem"
_HIVE: Final = "org.apache.hadoop.hive.ql.io.ProxyLocalFileSystem"  # replaces no file in a rename
_JAVA: Final = """
package %(package)s;

public class LocalFiles extends %(known)s {
  public LocalFiles() {
    fs = new Raw();
  }

  public static class Raw extends org.apache.hadoop.fs.RawLocalFileSystem {
    public void setPermission(
        org.apache.hadoop.fs.Path path, org.apache.hadoop.fs.permission.FsPermission permission)
        throws java.io.IOException {
      java.nio.file.Path file = pathToFile(path).toPath();
      Object mode = java.nio.file.Files.getAttribute(
          file, "unix:mode", new java.nio.file.LinkOption[0]);
      // Java sets nine bits and clears the others, where chmod keeps a directory's group id.
      if (permission.getStickyBit() || (((Integer) mode).intValue() & 07000) != 0) {
        super.setPermission(path, permission);
        return;
      }
      String symbols = permission.getUserAction().SYMBOL + permission.getGroupAction().SYMBOL
          + permission.getOtherAction().SYMBOL;
      java.nio.file.Files.setPosixFilePermissions(
          file, java.nio.file.attribute.PosixFilePermissions.fromString(symbols));
    }

    protected boolean mkOneDirWithMode(
        org.apache.hadoop.fs.Path path, java.io.File directory,
        org.apache.hadoop.fs.permission.FsPermission permission) throws java.io.IOException {
      if (super.mkOneDirWithMode(path, directory, permission)) {
        return true;
      }
      if (directory.exists()) {
        return false;
      }
      // Hadoop calls File.mkdir, which gives no reason for a failure. This call throws it.
      try {
        java.nio.file.Files.createDirectory(
            directory.toPath(), new java.nio.file.attribute.FileAttribute[0]);
      } catch (java.nio.file.FileAlreadyExistsException error) {
        return false;
      } catch (java.nio.file.NoSuchFileException error) {
        return false; // another has removed the folder above, and a retry helps
      }
      org.apache.hadoop.fs.permission.FsPermission asked = permission != null
          ? permission : org.apache.hadoop.fs.permission.FsPermission.getDirDefault();
      setPermission(path, asked.applyUMask(
          org.apache.hadoop.fs.permission.FsPermission.getUMask(getConf())));
      return true;
    }
  }
}
"""


def set_permissions_in_java(spark: SparkSession) -> bool:
    """Let Hadoop set permissions of local files without starting ``chmod``.

    Idempotent. It concerns the JVM of the driver, in which Spark's local mode runs its tasks, too.

    Returns:
        Whether Java sets them: not where Hadoop has its native library, and not where this JVM
        refuses the exchange, which the log says.
    """
    jvm: Any = spark._jvm
    hadoop = jvm.org.apache.hadoop
    try:
        if hadoop.io.nativeio.NativeIO.isAvailable():
            return False
        conf = spark.sparkContext._jsc.hadoopConfiguration()
        known = str(hadoop.fs.FileSystem.getFileSystemClass(_SCHEME, conf).getName())
        if known not in {_HADOOP, _HIVE}:
            return known == _CLASS
        field = jvm.java.lang.Class.forName("org.apache.hadoop.fs.FileSystem").getDeclaredField(
            "SERVICE_FILE_SYSTEMS"
        )
        field.setAccessible(True)
        field.get(None).put(_SCHEME, _compiled(jvm, known))
        hadoop.fs.FileSystem.getLocal(conf).close()  # the next caller gets one of the new class
    except Exception as error:  # noqa: BLE001 - Py4J has one class for all that Java throws
        log.debug("Hadoop starts chmod for each local file: %s", error)
        return False
    return True


def _compiled(jvm: Any, known: str) -> Any:
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    compiler.cook(_JAVA % {"package": _PACKAGE, "known": known})
    return compiler.getClassLoader().loadClass(_CLASS)
