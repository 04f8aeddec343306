"""The published interface: what an extension implements, and the values that it exchanges.

Everything else in the package is private, whatever its name. The interface is versioned: it changes
only together with :data:`VERSION`.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = 1
"""The version of the interface; a higher one may refuse extensions of a lower one."""
