from tests.airflow.page_browser import *
