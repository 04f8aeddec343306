from tests.spark.contracts import *
