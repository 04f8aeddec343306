from tests.airflow.page_server import *
