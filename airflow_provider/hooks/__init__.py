"""Start drivers and talk to jobs."""
