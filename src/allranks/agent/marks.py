"""Names of markers and attributes of tests. This module imports nothing, so that the fixtures can use it."""

CONFORMANCE = "conformance"
"""The marker of a test that checks a capability of a backend."""

CHILDREN_MAY_FAIL = "children_may_fail"
"""The marker of a test that expects its child processes to fail."""

FOREIGN_ATTRIBUTE = "allranks_is_foreign"
"""A test with a true attribute of this name was written for another runner; :mod:`allranks.testing` sets it."""
