"""The agent's pytest session: which tests there are, and on which terms each is run."""

CONFORMANCE = "conformance"
"""The marker of a test that shows a capability of a backend."""

FOREIGN_ATTRIBUTE = "allranks_is_foreign"
"""A test with a true attribute of this name was written for another runner; :mod:`allranks.testing` sets it."""
