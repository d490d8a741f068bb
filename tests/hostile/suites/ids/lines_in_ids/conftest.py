"""Ids of several lines."""

import reach

IDS = (
    "a\nFORGED",
    "a\rFORGED",
    "a\x1b[2JFORGED",
    "a\u2028FORGED",
    "a\x85FORGED",
    "a\\nFORGED",
    "a]]>",
    '"><failure/>',
    "",
)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.name.startswith("test_attack"):
            reach.rename(item, item.nodeid.partition("[")[0] + f"[{IDS[item.callspec.params['number']]}]")
