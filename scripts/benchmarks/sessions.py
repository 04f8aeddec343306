"""The settings that every benchmark gives Spark."""

from __future__ import annotations

QUIET = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
"""Nothing listens but on loopback, and nothing is drawn."""
