"""The job directory: the only room that knows where a document lies and what is in it."""
