"""Drivers as SparkApplication resources of a Kubernetes operator."""
