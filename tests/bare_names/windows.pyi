from scripts.benchmarks.windows import *
