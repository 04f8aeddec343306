"""The job directory: the only package that knows the location and the content of each document."""
