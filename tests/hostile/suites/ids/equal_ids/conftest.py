"""Two tests have one id."""


def pytest_collection_modifyitems(items):
    first, second = (item for item in items if item.name.startswith("test_attack"))
    second._nodeid = first.nodeid
