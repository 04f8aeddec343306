from tests.airflow.handmade import *
