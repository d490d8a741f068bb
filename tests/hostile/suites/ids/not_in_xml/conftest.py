"""Ids that are no XML, and their escaped forms beside them."""

import reach

IDS = (
    "\x01",
    "#x01",
    "\\x01",
    "\x00",
    "#x00",
    "\ufffe",
    "#xfffe",
    "\ud800",
    "#xd800",
    "\udcff",
    "#xdcff",
    "\x7f",
    "\x1e",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.name.startswith("test_attack"):
            reach.rename(item, item.nodeid.partition("[")[0] + f"[{IDS[item.callspec.params['number']]}]")
