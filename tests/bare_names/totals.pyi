from scripts.benchmarks.totals import *
