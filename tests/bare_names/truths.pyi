from tests.spark.truths import *
