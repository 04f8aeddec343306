from scripts.benchmarks.sessions import *
