from tests.spark.number_source import *
