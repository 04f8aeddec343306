from scripts.operator_signatures import *
