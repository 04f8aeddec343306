"""Clear text of a request: refuses a secret parameter whose value is also given as something else.

The request, its records and the command line that starts its driver have all else as it is given.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.base.typed_json import encode
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.redaction import Secrets

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_provider.runtime.jobdir.run_spec import DriverSpec


def check_not_in_clear_text(request: DriverSpec, values: Mapping[str, str]) -> None:
    """Refuse a request that has the value of a secret parameter in one of its other texts.

    Args:
        request: what a driver is asked for.
        values: of its secret parameters; of weak ones nothing can be said.

    Raises:
        ConfigError: the message names the parameter and the option, and no value.
    """
    secrets = Secrets.of(values)
    for field in dataclasses.fields(request):
        for text in _texts(encode(getattr(request, field.name))):
            if (name := secrets.find(text)) is not None:
                what = field.metadata["option"].argument if "option" in field.metadata else None
                msg = (
                    f"{what or field.name}: has the value of the secret parameter {name!r}, and is "
                    "stored and shown; let the job put the value in, from ctx.params"
                )
                raise ConfigError(msg)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
