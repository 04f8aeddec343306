"""The published contracts of extensions, as test classes; they need ``pytest``.

Subclass :class:`.sinks.SinkContract`, :class:`.sources.SourceContract` or
:class:`.launchers.LauncherContract` for an extension of your own.
"""
