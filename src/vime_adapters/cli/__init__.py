"""The ``vime`` command."""
