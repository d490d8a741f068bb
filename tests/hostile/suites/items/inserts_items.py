"""Both ranks put tests of their own before all others."""

import pytest

TRUTH = {"tests": {"test_attack": ["any", "any"], "test_fails": ["unpassed", "unpassed"]}}


def test_attack(request):
    for number in range(3):
        ghost = pytest.Function.from_parent(request.node.parent, name=f"test_ghost_{number}", callobj=lambda: None)
        request.session.items.insert(0, ghost)


def test_fails():
    raise AssertionError
