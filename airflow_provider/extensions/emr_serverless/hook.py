"""The kind ``emr-serverless``: a launcher by an Airflow connection of type ``aws``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider.extensions.emr_serverless.launcher import EmrOptions, EmrServerlessLauncher
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Connection

# Of the Amazon provider's connection: what makes other credentials than the keys it has.
_NOT_TAKEN: Final = (
    *("assume_role_method", "assume_role_kwargs", "config_kwargs", "external_id"),
    *("role_arn", "session_kwargs", "verify"),
)


class EmrKind:
    """See :class:`airflow_provider.hooks.api.LauncherKind`."""

    api_version = 1
    conn_types = ("aws",)
    options = EmrOptions
    is_experimental = True
    reads_local_paths = False

    def open(
        self, connection: Connection, options: Mapping[str, str], named: str
    ) -> EmrServerlessLauncher:
        """Return the launcher with the connection's credentials."""
        if not options.get("application_id"):
            msg = "launcher 'emr-serverless': application_id is not given; see launcher_options"
            raise ConfigError(msg)
        from airflow.sdk.log import mask_secret

        extra = connection.extra_dejson
        other = next((name for name in _NOT_TAKEN if extra.get(name)), None)
        if other is not None:
            msg = (
                f"{named}: its extra has {other!r}, which is not taken; give keys, a profile_name, "
                "or nothing, for the role of the machine"
            )
            raise ConfigError(msg)
        session = {
            "aws_access_key_id": connection.login or extra.get("aws_access_key_id"),
            "aws_secret_access_key": connection.password or extra.get("aws_secret_access_key"),
            "aws_session_token": extra.get("aws_session_token"),
            "region_name": extra.get("region_name"),
            "profile_name": extra.get("profile_name"),
        }
        for name in ("aws_secret_access_key", "aws_session_token"):
            if session[name]:
                mask_secret(session[name])
        services = extra.get("service_config") or {}
        everywhere = extra.get("endpoint_url")
        return EmrServerlessLauncher(
            EmrOptions(**options),
            session={name: value for name, value in session.items() if value},
            endpoint=(services.get("emr-serverless") or {}).get("endpoint_url") or everywhere,
            s3_endpoint=(services.get("s3") or {}).get("endpoint_url") or everywhere,
        )


EMR_SERVERLESS: Final = EmrKind()
