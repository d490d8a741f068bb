"""The plug-in ``conformance``: tests the implementation of a backend."""
