from tests.airflow.gated import *
