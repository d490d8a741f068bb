"""Hypothesis strategies for matrices and conditions."""

from pathlib import Path

from hypothesis import strategies as st

from allranks.matrix.axes import AXES, NO_TORCH, AxisValue, type_of_axis
from allranks.matrix.expand import IMPOSSIBLE
from allranks.matrix.model import Matrix, Rule
from allranks.matrix.when import parse_condition

VERSIONS = ["2.9.1", "2.13.0", "2.13.0+cpu", "2.14.1rc2", "2.14.1", "2.14.1.post1", "2.15.0.dev20261101+cu130"]
NAMES = {"backend": ["gloo", "nccl", "mpi", "ucc"], "init_method": ["env", "tcp", "file"], "torch": VERSIONS}
NUMBERS = {"world_size": [1, 2, 3, 4, 8], "gpu_count": [0, 1, 2, 4], "nodes": [1, 2, 3]}
CANDIDATES: dict[str, list[AxisValue]] = {axis: [*NAMES.get(axis, []), *NUMBERS.get(axis, [])] for axis in AXES}
ORDERED = ["==", "!=", "<", "<=", ">", ">="]


def on_axis(axis: str) -> st.SearchStrategy[AxisValue]:
    return st.sampled_from(CANDIDATES[axis])


@st.composite
def comparison_texts(draw: st.DrawFn) -> str:
    axis = draw(st.sampled_from(AXES))
    operators = ["==", "!="] if type_of_axis[axis] is str else ORDERED
    others = [other for other in AXES if other != axis and type_of_axis[other] is type_of_axis[axis]]
    operator = draw(st.sampled_from([*operators, "in", "not in"]))
    if operator.endswith("in"):
        return f"{axis} {operator} {draw(st.lists(on_axis(axis), min_size=1, max_size=3))!r}"
    other = draw(st.one_of(*([st.sampled_from(others)] if others else []), on_axis(axis).map(repr)))
    left, right = draw(st.permutations([axis, other]))
    chained = f" {draw(st.sampled_from(operators))} {draw(on_axis(axis))!r}" if draw(st.booleans()) else ""
    return f"{left} {operator} {right}{chained if right in AXES else ''}"


def condition_texts() -> st.SearchStrategy[str]:
    return st.recursive(
        comparison_texts(),
        lambda parts: st.one_of(
            parts.map(lambda part: f"not ({part})"),
            st.tuples(parts, st.sampled_from(["and", "or"]), parts).map(lambda three: "({}) {} ({})".format(*three)),
            st.lists(parts, min_size=2, max_size=4).map(" and ".join),
        ),
        max_leaves=6,
    )


def points() -> st.SearchStrategy[dict[str, AxisValue]]:
    return st.tuples(*map(on_axis, AXES)).map(lambda values: dict(zip(AXES, values, strict=True)))


def axes() -> st.SearchStrategy[dict[str, tuple[AxisValue, ...]]]:
    several = [st.lists(on_axis(axis), min_size=1, max_size=4, unique=True).map(tuple) for axis in AXES]
    several[-1] = st.just((NO_TORCH,)) | several[-1]
    return st.tuples(*several).map(lambda values: dict(zip(AXES, values, strict=True)))


def rules_of(texts: list[str]) -> tuple[Rule, ...]:
    return tuple(
        Rule(when=parse_condition(text), reason=f"reason {line}", line=line) for line, text in enumerate(texts)
    )


@st.composite
def matrices(draw: st.DrawFn) -> Matrix:
    """Any matrix; most have an impossible cell."""
    excludes = rules_of(draw(st.lists(condition_texts(), max_size=4)))
    return Matrix(path=Path("matrix.toml"), axes=draw(axes()), excludes=excludes)


@st.composite
def runnable_matrices(draw: st.DrawFn) -> Matrix:
    """A valid matrix: impossible cells are excluded, and at least one cell is left."""
    texts = draw(st.lists(condition_texts(), max_size=2))
    impossible = [rule.when.source for rule in IMPOSSIBLE]
    values = draw(axes())
    safe = {"backend": "xccl", "world_size": 16, "torch": "9.9" if values["torch"] != (NO_TORCH,) else NO_TORCH}
    values = {
        axis: (*own, *([safe[axis]] if axis in safe and own != (NO_TORCH,) else [])) for axis, own in values.items()
    }
    kept = [f"({text}) and world_size != 16" for text in texts]
    return Matrix(path=Path("matrix.toml"), axes=values, excludes=rules_of([*kept, *impossible]))
