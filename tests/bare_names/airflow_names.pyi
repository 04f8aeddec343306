from tests.airflow.airflow_names import *
