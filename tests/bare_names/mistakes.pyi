from tests.spark.mistakes import *
