from scripts.check_wheel import *
