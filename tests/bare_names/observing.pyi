from tests.airflow.observing import *
