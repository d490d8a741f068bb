"""Rank 1 replaces each function of each module of the harness by one that does nothing."""

import sys
import types

TRUTH = {"tests": {"test_attack": ["honest|timed_out", "any"], "test_next": ["honest|timed_out", "bad"]}}


def test_attack(rank):
    for name, module in list(sys.modules.items()) if rank == 1 else ():
        if name.partition(".")[0] == "allranks":
            for own, value in list(vars(module).items()):
                if isinstance(value, types.FunctionType | type):
                    setattr(module, own, lambda *_, **__: None)


def test_next(rank):
    assert rank == 0
