from tests.airflow.outside_package.streams_outside import *
