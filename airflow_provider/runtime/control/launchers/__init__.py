"""Launchers: what starts a driver on a cluster, and knows what became of it there.

:mod:`.protocol` says what one does, and has the table of what each crash leaves; those that there
are are :mod:`.spark_submit`, :mod:`.emr_serverless` and :mod:`.livy`; :mod:`.testing` is their
contract.
"""
