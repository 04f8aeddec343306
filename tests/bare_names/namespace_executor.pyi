from tests.airflow.namespace_executor import *
