"""The launcher of ``spark-submit``, and what launchers of services share.

The interface is :mod:`airflow_provider.runtime.api.launchers`.
"""
