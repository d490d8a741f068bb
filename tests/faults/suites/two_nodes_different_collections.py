"""The agents of two nodes collect different tests."""

import os

FAULT = {
    "nodes": 2,
    "verdict": ("error", "missing"),
    "ranks": ["missing", "missing"],
    "words": ["Nodes 0 and 1 have collected different tests"],
    "exit_code": 3,
    "others": {
        "test_after": {"verdict": ("error", "missing"), "ranks": ["missing", "missing"]},
        "job": {
            "verdict": ("error", "job"),
            "words": ["only on node 0: suite/test_two_nodes_different_collections.py::test_fault."],
        },
    },
    "seconds": 8,
}


if os.environ.get("GROUP_RANK") == "0":

    def test_fault():
        pass
