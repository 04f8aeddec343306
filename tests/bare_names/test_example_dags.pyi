from tests.airflow.test_example_dags import *
