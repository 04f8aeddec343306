"""Rules of a job for its rows, and unreadable records: counted, quarantined, or an error."""
