from tests.spark.stores import *
