from tests.spark.warm_pools import *
