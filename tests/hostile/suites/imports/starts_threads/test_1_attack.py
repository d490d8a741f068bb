"""The import leaves a timer that ends the process with the status of success, in the middle of a test."""

import time

TRUTH = {"attack_only": True, "tests": {"test_attack": {"ranks": ["unpassed", "unpassed"], "may_be_absent": True}}}


def test_attack():
    time.sleep(6)
    raise AssertionError
