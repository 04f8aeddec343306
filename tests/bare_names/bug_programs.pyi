from tests.spark.bug_programs import *
