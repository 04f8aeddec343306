from tests.spark.later_pyspark import *
