from tests.spark.scripting import *
