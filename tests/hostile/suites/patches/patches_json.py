"""Rank 1 makes json write and read nonsense."""

import json

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    if rank == 1:
        json.dumps = lambda *_, **__: '{"outcome": "passed"}\n\x1e{"event": ["x"]}'
        json.loads = lambda *_, **__: []
        json.JSONEncoder.encode = lambda *_: 1 / 0
        json.JSONDecoder.decode = lambda *_: None
