"""The driver: one attempt at a run, from its preconditions to its final checkpoint."""
