from tests.crash.deaths import *
