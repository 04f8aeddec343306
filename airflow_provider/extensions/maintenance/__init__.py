"""Maintenance of tables beside their jobs: compaction and expiry of what nothing needs."""
