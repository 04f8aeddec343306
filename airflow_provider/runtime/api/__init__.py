"""The published interface: what an extension implements, raises and uses.

Published are this package, :mod:`airflow_provider.runtime.testing` and
:mod:`airflow_provider.hooks.api`, and for jobs the names of :mod:`airflow_provider.runtime` itself.
Every other module of the runtime is private. The interface is versioned: it changes only together
with :data:`VERSION`.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = 1
"""The version of the interface; a higher one may refuse extensions of a lower one."""
