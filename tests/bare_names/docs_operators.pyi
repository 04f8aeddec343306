from scripts.docs_operators import *
