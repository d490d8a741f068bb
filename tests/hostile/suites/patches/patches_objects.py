"""Rank 1 looks at every object that Python knows, and turns failures into passes in lists, tables and enumerations."""

import enum
import gc

TRUTH = {"tests": {"test_attack": ["honest", "any"]}}


def test_attack(rank):
    for item in gc.get_objects() if rank == 1 else ():
        if type(item) is list:
            item[:] = ["passed" if type(value) is str and value == "failed" else value for value in item]
        elif type(item) is dict:
            item.update({key: "passed" for key, value in item.items() if type(value) is str and value == "failed"})
        elif isinstance(item, enum.EnumType) and "FAILED" in item.__members__:
            item.FAILED._value_ = "passed"
