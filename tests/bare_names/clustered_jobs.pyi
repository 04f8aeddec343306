from tests.crash.clustered_jobs import *
