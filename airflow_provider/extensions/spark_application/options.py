"""Options of the launcher ``spark-application``, and the names that it gives."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from typing import Final

from airflow_provider.runtime.api.errors import ConfigError

KIND: Final = "spark-application"
_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?", re.ASCII)
# Operators append to the name, such as ``-driver-svc``, and the result has 63 characters at most.
_LONGEST_TOKEN: Final = 32
_OPERATORS: Final = ("kubeflow", "apache")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparkApplicationOptions:
    """Options of the launcher, as the operator's ``launcher_options`` has them.

    Attributes:
        operator: ``kubeflow`` or ``apache``: whose SparkApplication.
        namespace: of the application; empty for the connection's, else ``default``.
        entry_point: address of ``spark_stream_driver.py``, made by ``spark-stream package``, that
            the driver's pod can read.
        runtime: the address of the zip that the same command made.
        spark_version: of the image; empty if the template has it.
        image: of driver and executors; empty if the template has it.
        service_account: of the driver's pod; empty if the template has it.
        queue: of Kueue; empty for none.
        template: a SparkApplication as YAML, or the path of such a file; empty for none.
    """

    operator: str = "kubeflow"
    namespace: str = ""
    entry_point: str = ""
    runtime: str = ""
    spark_version: str = ""
    image: str = ""
    service_account: str = ""
    queue: str = ""
    template: str = dataclasses.field(default="", metadata={"mapping": True})

    def check(self) -> None:
        check_operator(self.operator)
        for name in ("entry_point", "runtime"):
            if not getattr(self, name):
                raise ConfigError(
                    f"{KIND}: {name} is not given; put what 'spark-stream package' makes where the "
                    "driver's pod reads it, and give its address"
                )
        if "," in self.entry_point:
            raise ConfigError(f"{KIND}: entry_point {self.entry_point!r}: an address has no comma")
        if self.namespace and not _DNS_LABEL.fullmatch(self.namespace):
            raise ConfigError(
                f"{KIND}: namespace {self.namespace!r} is no name of one; use small letters, "
                "digits and hyphens"
            )
        if self.queue and not _LABEL_VALUE.fullmatch(self.queue):
            raise ConfigError(
                f"{KIND}: queue {self.queue!r} is no value of a label; give the name of a "
                "LocalQueue of Kueue in the namespace"
            )


def check_operator(operator: str) -> None:
    """Raise ConfigError for an operator that is not known."""
    if operator not in _OPERATORS:
        known = " or ".join(map(repr, _OPERATORS))
        raise ConfigError(f"{KIND}: operator {operator!r}: use {known}")


def name_of(token: str) -> str:
    """Return the application's name, a DNS label that depends on the token alone."""
    is_part = _DNS_LABEL.fullmatch(token) and len(token) <= _LONGEST_TOKEN
    digest = hashlib.sha256(token.encode()).hexdigest()[:_LONGEST_TOKEN]
    return f"spark-stream-{token if is_part else digest}"


def check_token(token: str) -> None:
    """Raise ConfigError for a token that no label can have."""
    if not _LABEL_VALUE.fullmatch(token):
        raise ConfigError(f"{KIND}: token {token!r} cannot be the value of a label of Kubernetes")
