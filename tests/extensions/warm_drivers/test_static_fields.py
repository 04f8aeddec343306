"""Properties that Java reads only once."""

from __future__ import annotations

import pytest

from airflow_provider.extensions.warm_drivers.static_fields import changed_for_good


@pytest.mark.parametrize(
    "name",
    [
        "javax.net.ssl.trustStore",
        "java.net.preferIPv4Stack",
        "java.security.auth.login.config",
        "jdk.tls.client.protocols",
        "sun.net.client.defaultReadTimeout",
        "https.protocols",
        "http.keepAlive",
    ],
)
@pytest.mark.parametrize("before", [{}, {"x": "y"}, None])
def test_a_property_that_java_reads_once_is_named(name, before):
    """Whether the run has set it, or taken it away."""
    had = {name: "old"} if before is None else before
    has = {} if before is None else {**before, name: "new"}

    assert name == changed_for_good(had, has)
    assert changed_for_good(has, has) is None


@pytest.mark.parametrize("name", ["http.proxyHost", "https.proxyPort", "user.dir", "planted"])
def test_a_property_that_java_reads_again_is_put_back(name):
    """Such as that of a proxy, which Java looks up for each connection."""
    assert changed_for_good({}, {name: "new"}) is None
