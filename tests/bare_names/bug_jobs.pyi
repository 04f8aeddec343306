from tests.spark.bug_jobs import *
