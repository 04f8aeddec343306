"""Failures: their classes, and what each means for the next attempt."""
