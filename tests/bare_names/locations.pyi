from scripts.benchmarks.locations import *
