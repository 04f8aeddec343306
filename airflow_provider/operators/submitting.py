"""An operator that submits drivers: the connection and the options of ``spark-submit``."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from airflow_provider.hooks.chosen_hook import hook_of
from airflow_provider.hooks.launchers import LauncherChoice
from airflow_provider.hooks.submit_options import SubmitOptions, refuse
from airflow_provider.operators.lineage import LineageOperator

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_provider.hooks.driver_hook import DriverHook

Init = TypeVar("Init", bound="Callable[..., None]")


SUBMIT_FIELDS: Final = (
    "conf",
    "env_vars",
    "files",
    "py_files",
    "jars",
    "driver_class_path",
    "packages",
    "exclude_packages",
    "keytab",
    "principal",
    "proxy_user",
    "properties_file",
    "conn_id",
    "storage_conn_id",
    "launcher_options",
)
"""Fields with templates; those of ``SparkSubmitOperator``."""
SUBMIT_RENDERERS: Final = {
    "conf": "json",
    "env_vars": "json",
    "launcher_options": "json",
}


class Options(Protocol):
    """A class whose fields are keyword arguments of an operator."""

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        """Return the arguments as a signature has them."""


def taking(kind: type[Options]) -> Callable[[Init], Init]:
    """Give the signature of an ``__init__`` the arguments of *kind*, which it takes as keywords.

    Airflow reads from the signature which arguments ``default_args`` and ``partial()`` may give.
    """

    def decorate(init: Init) -> Init:
        signature = inspect.signature(init)
        *own, others = signature.parameters.values()
        parameters = [*own, *kind.parameters(), others]
        vars(init)["__signature__"] = signature.replace(parameters=parameters)
        return init

    return decorate


def split_arguments(
    kind: type[Options], given: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments that are options of *kind*, and the others."""
    names = {each.name for each in kind.parameters()}
    return (
        {name: value for name, value in given.items() if name in names},
        {name: value for name, value in given.items() if name not in names},
    )


class SubmittingOperator(LineageOperator):
    """The arguments of operators that submit a driver: a connection and ``spark-submit`` options.

    Args:
        conn_id: the Spark connection; with another *launcher*, the connection of that service.
        launcher: what starts the driver: ``spark-submit`` (default), ``emr-serverless``, ``livy``
            or ``spark-application``.
        launcher_options: options of the launcher; they override those in the connection's extra.
        warm: whether to use a matching warm driver on the worker's machine; by default ``warm`` in
            the connection's extra.
        arguments: the fields of :class:`SubmitOptions`; those of :class:`LineageOperator`, and
            Airflow's own.

    Raises:
        ConfigError: an argument is invalid or not accepted.
    """

    template_fields: Sequence[str] = SUBMIT_FIELDS
    conf: dict[str, str]
    env_vars: dict[str, Any]
    _opened: tuple[LauncherChoice, SubmitOptions, DriverHook] | None = None

    @taking(SubmitOptions)
    def __init__(
        self,
        *,
        conn_id: str = "spark_default",
        launcher: str | None = None,
        launcher_options: Mapping[str, str] | None = None,
        warm: bool | None = None,
        **arguments: Any,
    ) -> None:
        refuse(arguments)
        options, others = split_arguments(SubmitOptions, arguments)
        super().__init__(**others)
        self.conn_id, self.warm = conn_id, warm
        self.launcher, self.launcher_options = launcher, dict(launcher_options or {})
        self._launcher_choice()
        for each in SubmitOptions.parameters():
            setattr(self, each.name, options.get(each.name, each.default))
        self.conf, self.env_vars = dict(self.conf or {}), dict(self.env_vars or {})
        SubmitOptions.of(self).check()

    def _hook(self) -> DriverHook:
        # One, with its connection: when a signal asks for it, the task may be talking to Airflow.
        choice, options = self._launcher_choice(), SubmitOptions.of(self)
        if self._opened is None or self._opened[:2] != (choice, options):
            lineage = self._lineage_injector()
            hook = hook_of(choice, options, warm=self.warm, with_lineage=lineage)
            self._opened = (choice, options, hook)
        return self._opened[2]

    def _launcher_choice(self) -> LauncherChoice:
        return LauncherChoice.of(self.launcher, self.conn_id, self.launcher_options, warm=self.warm)
