"""Ids that are no XML, and their escaped forms beside them."""

IDS = ("\x01", "#x01", "\\x01", "\x00", "#x00", "\ufffe", "#xfffe", "\ud800", "#xd800", "\udcff", "#xdcff", "\x7f", "\x1e")


def pytest_collection_modifyitems(items):
    for item in items:
        if item.name.startswith("test_attack"):
            item._nodeid = item.nodeid.partition("[")[0] + f"[{IDS[item.callspec.params['number']]}]"
