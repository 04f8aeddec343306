from tests.airflow.chaos import *
