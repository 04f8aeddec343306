from tests.spark.state_truths import *
