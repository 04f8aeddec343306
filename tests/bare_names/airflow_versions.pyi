from scripts.airflow_versions import *
