from tests.airflow.services import *
