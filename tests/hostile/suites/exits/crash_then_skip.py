"""Rank 1 crashes in the first attempt and skips in the second: it never passed."""

import os

import pytest

TRUTH = {
    "arguments": ["--reruns", "1"],
    "attack_only": True,
    "tests": {"test_attack": {"ranks": ["any", "any"], "is_bad": True}},
}


def test_attack(request):
    if request.config.cache.get("cache/lastfailed", None):
        pytest.skip("not this time")
    os.abort()
