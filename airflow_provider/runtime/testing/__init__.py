"""The published contracts of extensions, as test classes; they need ``pytest``.

Subclass :class:`.sinks.SinkContract`, :class:`.launchers.LauncherContract` or
:class:`.storages.StorageContract` for an extension of your own.
"""
