from tests.property.job_inputs import *
