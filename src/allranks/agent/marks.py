"""Names by which tests tell the agent how they are to be run; this imports nothing, and neither do fixtures."""

CONFORMANCE = "conformance"
"""The marker of a test that shows a capability of a backend."""

CHILDREN_MAY_FAIL = "children_may_fail"
"""The marker of a test that expects processes which it starts to fail."""

FOREIGN_ATTRIBUTE = "allranks_is_foreign"
"""A test with a true attribute of this name was written for another runner; :mod:`allranks.testing` sets it."""
