from tests.spark.batch_jobs import *
