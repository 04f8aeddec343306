"""The published tools for extensions: one module per subject; the kernel does not use them.

They re-export parts of the kernel and are versioned as the rest of the interface. Importing one
loads neither Airflow nor Spark; only ``object_stores`` loads a store's library.
"""
