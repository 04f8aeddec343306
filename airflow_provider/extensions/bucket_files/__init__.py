"""The ``files`` sink in object stores: data files that executors upload and the store copies.

Spark reaches a bucket only with Hadoop's jars, so its tasks write their files to the local disk of
their executor, and upload them with the storage's own client to where nobody reads. When Spark has
committed the batch, the store copies each file to its final name, on the condition that there is
none. The names follow from the epoch, so a process that publishes an epoch again finds it there.

The state of one file when its writer has died:

===========================  =======================================================================
there is                     what happens
===========================  =======================================================================
a local file of an executor  Spark removes its local folders
a staged file without record the next start removes it (:meth:`.BucketFilesSink.recover`)
a staged file, recorded      published, when Spark has committed the batch
the same, half copied        nobody sees it, but for an empty blob in Azure; it is copied again, or
                             the copy is waited for; an unfinished upload of S3's is aborted
both, staged and published   the copy is refused, and both have the same size: it is published
the published one alone      published; the staged one was removed afterwards
neither                      refused: another program has removed the staged file
===========================  =======================================================================

A late driver does the same as its successor, or finds the staged file gone. A revert removes the
staged files first, then ends copies that are on their way, then removes the published ones: in this
order none comes back (:mod:`~airflow_provider.runtime.storage.store_copies`).
"""
