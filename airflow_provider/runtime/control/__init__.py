"""Control: a run as seen from outside the driver: submitted, adopted, stopped."""
