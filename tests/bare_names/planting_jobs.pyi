from tests.spark.planting_jobs import *
