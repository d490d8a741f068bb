"""Digests of parameter values: equal in all processes for equal values, and what may differ is told apart."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.protocol.parameter_values import Changes, changes, digest

VALUES = r"""
    import dataclasses, datetime, enum, functools, os, pathlib, tempfile, uuid
    import torch
    import torch.distributed as dist

    class Plain:
        def __init__(self, *values): self.values = values

    class Mode(enum.Flag):
        A = enum.auto()
        B = enum.auto()

    @dataclasses.dataclass
    class Case:
        name: str
        part: object = None

    class Broken:
        def __repr__(self): raise RuntimeError("no text")

    def made(value):
        return lambda: value

    cycle = []
    cycle.append(cycle)
    deep = shared = [1]
    for _ in range(60):
        shared = [shared, shared]
    folder = tempfile.mkdtemp()
    os.rmdir(folder)

    FIXED = {
        "text": "a", "other text": "b", "bytes": b"a", "one": 1, "one as a float": 1.0, "true": True, "none": None,
        "nan": float("nan"), "set": {"a", "b", "c"}, "other set": {"a", "b", "d"}, "nested set": [{("a", "b"), ("c",)}],
        "dict of a set": dict.fromkeys({"x", "y", "z"}), "plain object": Plain("a", {"b"}), "other object": Plain("b"),
        "class": Plain, "function": made, "lambda": lambda: 1, "other lambda": lambda: 2, "closure": made(1),
        "other closure": made(2), "partial": functools.partial(made, 1), "other partial": functools.partial(made, 2),
        "method": Plain("a").__init__, "flag": Mode.A, "both flags": Mode.A | Mode.B, "case": Case("a", Plain(1)),
        "other case": Case("a", Plain(2)), "dtype": torch.float32, "other dtype": torch.float16,
        "device": torch.device("cpu"), "sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "tensor": torch.ones(2),
        "other tensor": torch.zeros(2), "path": pathlib.Path("/data/a"), "broken": Broken(), "cycle": cycle,
        "shared": shared,
    }
    VARIABLE = {
        "temporary path": pathlib.Path(folder) / "x", "text with it": f"file://{folder}/store", "uuid": uuid.uuid4(),
        "time": datetime.datetime.now(), "in a case": Case("a", folder), "in a set": {folder, "a"},
    }
"""

PROGRAM = f"""{textwrap.dedent(VALUES)}
import json
from allranks.protocol.parameter_values import digest
print(json.dumps([{{name: digest({{"x": value}}) for name, value in each.items()}} for each in (FIXED, VARIABLE)]))
"""


@pytest.fixture(scope="module")
def of_two_processes():
    """The digests in two processes with other hash seeds, of fixed values and of variable ones."""
    done = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE,
            check=True,
        )
        for seed in ("1", "2")
    ]
    return [json.loads(each.stdout) for each in done]


@pytest.mark.thorough
def test_fixed_values_have_the_same_digest_in_every_process(of_two_processes):
    (one, _), (other, _) = of_two_processes
    assert one == other


@pytest.mark.thorough
def test_different_values_have_different_digests(of_two_processes):
    fixed = of_two_processes[0][0]
    assert len(set(fixed.values())) == len(fixed)


@pytest.mark.thorough
def test_values_of_one_process_alone_differ_in_the_variable_part_only(of_two_processes):
    (_, one), (_, other) = of_two_processes
    assert {name for name in one if one[name] != other[name]} == one.keys()
    found = changes(one, other)
    assert found == Changes(other_variables=tuple(one))


def test_no_parameters_have_no_digest():
    assert digest({}) == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON)
def test_digests_are_equal_exactly_if_the_values_are(one, other):
    assert (digest({"x": one}) == digest({"x": other})) == (
        repr(one) == repr(other) or in_order(one) == in_order(other)
    )


def in_order(value):
    """A value as text that tells types apart, and in which the order of a dictionary does not count."""
    if isinstance(value, dict):
        return f"{{{','.join(sorted(f'{key!r}:{in_order(each)}' for key, each in value.items()))}}}"
    if isinstance(value, list):
        return f"[{','.join(map(in_order, value))}]"
    return repr(value)


@pytest.mark.parametrize(
    ("after", "found"),
    [
        ({"a": "1", "b": "2.8", "c": ""}, Changes()),
        ({"a": "2", "b": "1.8", "c": ""}, Changes(other_values=("a", "b"))),
        ({"a": "1", "b": "2.9", "c": ""}, Changes(other_variables=("b",))),
        ({"a": "1", "b": "2", "c": ""}, Changes(other_variables=("b",))),
        ({"a": "1", "b": "2.8", "d": ""}, Changes(added=("d",), removed=("c",))),
        ({"a": "1", "b": "2.8", "c": "3"}, Changes(other_values=("c",))),
        ({}, Changes(removed=("a", "b", "c"))),
    ],
)
def test_changes_between_two_collections(after, found):
    assert changes({"a": "1", "b": "2.8", "c": ""}, after) == found
