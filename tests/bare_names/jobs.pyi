from tests.spark.jobs import *
