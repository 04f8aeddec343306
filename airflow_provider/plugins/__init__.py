"""Plugins of Airflow: the page "Streams" and its API."""
