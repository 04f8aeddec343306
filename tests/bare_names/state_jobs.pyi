from tests.spark.state_jobs import *
