"""When and what is started again after a failure."""
