"""Permissions of local files that Hadoop makes, set without a process for each."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.spark.local_permissions import set_permissions_in_java

pytestmark = pytest.mark.spark

OWN = "airflow_provider.local.LocalFiles"


def hadoop_of(spark, path):
    """Return Hadoop's path, the file system that it has, and Hadoop's package."""
    hadoop = spark._jvm.org.apache.hadoop.fs
    path = hadoop.Path(f"file:{path}")
    return path, path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()), hadoop


@pytest.mark.parametrize("mode", ["0644", "0600", "0755", "0000", "1777"])
def test_a_permission_is_the_one_that_was_asked_for(spark, tmp_path, mode):
    """With the sticky bit, too, for which Java has no call."""
    assert set_permissions_in_java(spark)
    (tmp_path / "one").touch()
    path, files, hadoop = hadoop_of(spark, tmp_path / "one")

    files.setPermission(path, hadoop.permission.FsPermission(mode))

    assert OWN == files.getClass().getName()
    assert int(mode, 8) == (tmp_path / "one").stat().st_mode & 0o7777


def test_a_directory_keeps_its_group_for_new_files(spark, tmp_path):
    """As with chmod: files that other users add to a shared directory belong to its group."""
    assert set_permissions_in_java(spark)
    tmp_path.chmod(0o2775)
    path, files, hadoop = hadoop_of(spark, tmp_path)

    files.setPermission(path, hadoop.permission.FsPermission("0755"))
    assert files.mkdirs(hadoop.Path(path, "below"))

    assert 0o2755 == tmp_path.stat().st_mode & 0o7777
    assert (tmp_path / "below").stat().st_mode & 0o2000


def test_a_directory_that_cannot_be_made_says_why(spark, tmp_path):
    """Hadoop's own class says only that it failed; one that is there already is no failure."""
    from py4j.protocol import Py4JJavaError

    assert set_permissions_in_java(spark)
    path, files, hadoop = hadoop_of(spark, tmp_path)

    with pytest.raises(Py4JJavaError, match="File name too long"):
        files.mkdirs(hadoop.Path(path, 300 * "x"))
    with pytest.raises(Py4JJavaError, match="File name too long"):
        files.create(hadoop.Path(path, 300 * "x" + "/below/one"))
    assert files.mkdirs(hadoop.Path(path, "below"))
    assert files.mkdirs(hadoop.Path(path, "below"))


def test_a_directory_whose_parent_is_gone_is_as_hadoop_has_it(spark, tmp_path):
    """Between the making of the two another may remove the first: False, and the caller decides."""
    assert set_permissions_in_java(spark)
    path, files, _ = hadoop_of(spark, tmp_path / "gone" / "below")
    raw = files.getRawFileSystem()
    (make,) = [m for m in raw.getClass().getDeclaredMethods() if m.getName() == "mkOneDirWithMode"]
    make.setAccessible(True)
    arguments = spark.sparkContext._gateway.new_array(spark._jvm.Object, 3)
    arguments[0], arguments[1] = path, raw.pathToFile(path)

    assert make.invoke(raw, arguments) is False


def test_files_and_directories_have_the_permissions_of_hadoops_own_class(spark, tmp_path):
    """What Spark writes is the same with both classes."""
    assert set_permissions_in_java(spark)
    path, _, hadoop = hadoop_of(spark, tmp_path / "theirs")
    theirs = hadoop.LocalFileSystem()
    theirs.initialize(path.toUri(), spark.sparkContext._jsc.hadoopConfiguration())

    theirs.create(hadoop.Path(f"file:{tmp_path}/theirs/a/one")).close()
    spark.range(1).selectExpr("'x'").coalesce(1).write.text(f"file:{tmp_path}/ours")

    written = {path.stat().st_mode for path in (tmp_path / "ours").iterdir()}
    assert written == {(tmp_path / "theirs" / "a" / "one").stat().st_mode}
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "theirs").stat().st_mode


def test_a_second_call_changes_nothing(spark, tmp_path):
    """A session of a JVM that runs already finds the class in its place."""
    assert set_permissions_in_java(spark)
    first = hadoop_of(spark, tmp_path)[1]

    assert set_permissions_in_java(spark)
    assert first.equals(hadoop_of(spark, tmp_path)[1])


def test_a_class_that_the_user_has_set_keeps_its_place(spark, tmp_path):
    """``spark.hadoop.fs.file.impl`` may be the way around files without checksums."""
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    raw = "org.apache.hadoop.fs.RawLocalFileSystem"
    conf.set("fs.file.impl", raw)
    try:
        assert not set_permissions_in_java(spark)
        files = spark._jvm.org.apache.hadoop.fs.FileSystem.newInstance(
            hadoop_of(spark, tmp_path)[0].toUri(), conf
        )
        assert raw == files.getClass().getName()
    finally:
        conf.unset("fs.file.impl")
