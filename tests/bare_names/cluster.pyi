from tests.crash.cluster import *
