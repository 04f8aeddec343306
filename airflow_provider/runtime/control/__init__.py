"""Control: a run as seen from outside the driver: submitted, observed, supervised, stopped."""
