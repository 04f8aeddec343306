from tests.spark.row_checks import *
