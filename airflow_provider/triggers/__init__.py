"""Triggers: they wait in Airflow's triggerer, without a worker slot."""
