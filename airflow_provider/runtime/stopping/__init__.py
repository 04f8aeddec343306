"""Stopping a job from outside, with or without drain, with or without a savepoint (FLIP-34).

The caller puts a request into the job directory, the driver answers there: see :mod:`.calling` and
:mod:`.desk`.
"""
