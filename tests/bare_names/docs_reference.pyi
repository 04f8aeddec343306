from scripts.docs_reference import *
