"""Pods of drivers on Kubernetes, and the errors of its Python client."""

from __future__ import annotations

from airflow_provider.runtime.base.kubernetes_pods import (
    CONTAINER,
    LABEL,
    TIMEOUT,
    PodsClient,
    kubernetes_errors,
    message_of,
    refusal_in,
)

__all__ = [
    "CONTAINER",
    "LABEL",
    "TIMEOUT",
    "PodsClient",
    "kubernetes_errors",
    "message_of",
    "refusal_in",
]
