"""Upgrades: a new version of a job takes its stream over, and gives it back if it fails."""
