from tests.crash.drivers import *
