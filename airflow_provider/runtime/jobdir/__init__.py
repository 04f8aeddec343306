"""The job directory: the only package that knows the place and the content of each document."""
