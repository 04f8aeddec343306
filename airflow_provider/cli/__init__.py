"""Commands of ``airflow`` that the provider adds."""
