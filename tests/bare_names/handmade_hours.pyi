from tests.airflow.handmade_hours import *
