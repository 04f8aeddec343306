"""Rules of a job for its rows, and records that cannot be read: counted, quarantined, or an error."""
