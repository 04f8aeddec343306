from tests.property.ends_scenarios import *
