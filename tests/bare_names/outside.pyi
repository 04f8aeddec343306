from tests.airflow.outside import *
