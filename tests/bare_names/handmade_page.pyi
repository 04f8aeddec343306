from tests.airflow.handmade_page import *
