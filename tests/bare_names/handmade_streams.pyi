from tests.airflow.handmade_streams import *
