from tests.spark.streams import *
