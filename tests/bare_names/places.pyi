from scripts.benchmarks.places import *
