"""The user's template of a SparkApplication, and what is put over it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.spark_application.options import KIND
from airflow_provider.runtime.api.errors import ConfigError
from airflow_provider.runtime.api.kit.messages import first_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MOST_BYTES: Final = 1 << 20  # an object of Kubernetes has 1.5 MiB at most
_TOP: Final = ("apiVersion", "kind", "metadata", "spec")
_METADATA: Final = ("annotations", "labels")


def read_template(template: str, api_version: str) -> dict[str, Any]:
    """Return the template as a resource with metadata and spec.

    Args:
        template: YAML, or the path of a file with it; empty for none.
        api_version: of the resource that is made.

    Raises:
        ConfigError: the file cannot be read, or is no SparkApplication of this version.
    """
    raw = _parsed(template) if template else {}
    for name, allowed in (("", _TOP), ("metadata", _METADATA)):
        part = _mapping(raw, name) if name else raw
        if other := sorted(str(each) for each in part if each not in allowed):
            raise ConfigError(
                f"{KIND}: template: {f'{name}.' if name else ''}{other[0]}: leave it out; "
                f"a template has {', '.join(allowed)}{' there' if name else ''}"
            )
    for name, value in (("apiVersion", api_version), ("kind", "SparkApplication")):
        if raw.get(name, value) != value:
            raise ConfigError(
                f"{KIND}: template: {name} is {raw[name]!r}, and the operator takes {value!r}; "
                "correct the template, or the option operator"
            )
    return {name: _mapping(raw, name) for name in ("metadata", "spec")}


def _mapping(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = raw.get(name)
    if part is None:
        return {}
    if not isinstance(part, dict):
        raise ConfigError(f"{KIND}: template: {name} is {part!r}; give a mapping")
    return part


def _parsed(template: str) -> Any:
    import yaml

    is_text = "\n" in template or template.lstrip().startswith("{")
    named = "template" if is_text else f"template {template}"
    text = template if is_text else _text_of(template)
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{KIND}: {named}: is no YAML: {first_line(str(error))}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{KIND}: {named}: has no mapping; write a SparkApplication, with spec:")
    return found


def _text_of(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ConfigError(f"{KIND}: template {path}: has more than {_MOST_BYTES} bytes")
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{KIND}: template {path}: {first_line(str(error))}; give the path of a YAML file on "
            "each worker and triggerer, or the template itself"
        ) from None


def put_over(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return *base* with the values of *over*, which win; mappings are merged."""
    found = dict(base)
    for name, value in over.items():
        found[name] = put_over(_mapping(found, name), value) if isinstance(value, dict) else value
    return found


def own(base: Mapping[str, Any], ours: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return *base* with *ours*; ConfigError names a value of *base* that contradicts ours."""
    found = dict(base)
    for name, value in ours.items():
        place = f"{where}{name}"
        old = found.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            found[name] = own(old, value, f"{place}.")
        elif old is not None and old != value:
            raise ConfigError(
                f"{KIND}: {place}: is the launcher's own, and given as {old!r}; leave it out of "
                "template and conf"
            )
        else:
            found[name] = value
    return found


def refuse(base: Mapping[str, Any], paths: Iterable[str]) -> None:
    """Raise ConfigError if *base* has a value at one of these paths."""
    for path in paths:
        if value_at(base, path) is not None:
            raise ConfigError(
                f"{KIND}: {path}: contradicts what the launcher sets; leave it out of the template"
            )


def value_at(base: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path of names with dots; None if there is none."""
    found: Any = base
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found
