from tests.airflow.orders import *
