"""Spark itself: where it is installed, what its versions differ in, its settings, its session."""
