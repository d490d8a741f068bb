"""The fault: it fails as it is imported."""

msg = "the conftest is broken"
raise RuntimeError(msg)
