from tests.crash.stories import *
