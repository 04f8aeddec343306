from tests.spark.gates import *
