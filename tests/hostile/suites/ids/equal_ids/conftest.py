"""Two tests have one id."""

import reach


def pytest_collection_modifyitems(items):
    first, second = (item for item in items if item.name.startswith("test_attack"))
    reach.rename(second, first.nodeid)
