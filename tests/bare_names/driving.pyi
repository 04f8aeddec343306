from tests.spark.driving import *
