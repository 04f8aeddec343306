from tests.property.ends_truths import *
