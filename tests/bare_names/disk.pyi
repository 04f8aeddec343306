from tests.crash.disk import *
