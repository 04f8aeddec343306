"""Observe: the state, health, completeness, samples and events of a run, from its job directory."""
