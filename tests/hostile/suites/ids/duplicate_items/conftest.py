"""Every attack is collected three times, under one id."""


def pytest_collection_modifyitems(items):
    attacks = [item for item in items if item.name == "test_attack"]
    items[:] = [*items[:-1], *attacks, *attacks, items[-1]]
