"""Which axis a rate follows, from counts alone."""

import random
from collections.abc import Callable
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from allranks.matrix.axes import AxisValue
from allranks.plugins.stress.deciding_axis import CellRate, deciding_axes, verdict_text

Cell = dict[str, AxisValue]


def rates(of: Callable[[Cell], tuple[int, int]], sizes=(2, 4), backends=("gloo", "ucc"), inits=("env", "tcp")):
    found = []
    for backend, size, init in product(backends, sizes, inits):
        axes: Cell = {"backend": backend, "world_size": size, "init_method": init}
        bad, runs = of(axes)
        found.append(CellRate(cell=f"{backend}-w{size}-{init}", axes=axes, bad=bad, runs=runs))
    return found


def test_the_axis_whose_values_fail_is_named_with_its_counts():
    found = rates(lambda cell: (8, 10) if cell["world_size"] == 4 else (0, 15))
    [split] = deciding_axes(found, 0.99)
    assert (split.axis, split.predicate, split.also) == ("world_size", "world_size >= 4", ())
    assert verdict_text([split], found) == (
        "fails at world_size 4 (32 of 40), never at 2 (0 of 60): world_size decides, confidence over 99.9 %"
    )


def test_an_axis_may_decide_within_another_one():
    found = rates(lambda cell: (9, 10) if cell["world_size"] == 4 and cell["backend"] == "ucc" else (0, 10))
    assert {split.axis for split in deciding_axes(found, 0.99)} == {"world_size", "backend"}
    assert verdict_text(deciding_axes(found, 0.99), found) == (
        "fails at backend ucc (18 of 40), never at gloo (0 of 40), and there at world_size 4 (18 of 20), "
        "never at 2 (0 of 20): backend, then world_size decide, confidence over 99.9 %"
    )


def test_axes_that_change_together_are_not_told_apart():
    found = [
        CellRate(cell="a", axes={"backend": "gloo", "gpu_count": 0}, bad=0, runs=20),
        CellRate(cell="b", axes={"backend": "nccl", "gpu_count": 2}, bad=20, runs=20),
    ]
    report = verdict_text(deciding_axes(found, 0.99), found)
    assert "backend or gpu_count decide, which these cells cannot tell apart" in report


def test_a_rate_that_is_higher_and_not_zero_elsewhere_is_said_so():
    found = rates(lambda cell: (30, 50) if cell["init_method"] == "tcp" else (5, 50))
    assert verdict_text(deciding_axes(found, 0.99), found).startswith(
        "fails at init_method tcp (120 of 200), less often at env (20 of 200)"
    )


def test_rates_that_are_alike_follow_no_axis():
    found = rates(lambda cell: (6, 10) if cell["init_method"] == "tcp" else (5, 10))
    assert deciding_axes(found, 0.99) == []
    assert verdict_text([], found) == "fails 44 of 80 times in 8 cells: no axis decides"
    assert deciding_axes([], 0.99) == []


@given(st.integers(1, 29), st.integers(0, 2**32))
def test_failures_that_chance_spreads_seldom_follow_an_axis(bad, seed):
    """Over all ways to spread them the share is at most the risk; one draw may be unlucky, so a tiny risk is asked."""
    places = random.Random(seed).sample(range(80), bad)  # noqa: S311 - one of Hypothesis would look for bad luck
    found = rates(lambda _: (0, 10))
    shared = [sum(place // 10 == index for place in places) for index in range(8)]
    drawn = [CellRate(cell=item.cell, axes=item.axes, bad=b, runs=10) for item, b in zip(found, shared, strict=True)]
    assert all(split.confidence < 1 for split in deciding_axes(drawn, 0.5))
    assert deciding_axes(drawn, 1 - 1e-9) == []


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(20, 40)), min_size=8, max_size=8))
def test_what_is_named_fails_more_often_than_the_rest(counts):
    left = iter(counts)
    for split in deciding_axes(rates(lambda _: next(left)), 0.9):
        inside, outside = (
            (sum(e.bad for e in side), sum(e.runs for e in side)) for side in (split.inside, split.outside)
        )
        assert inside[0] / inside[1] > outside[0] / outside[1]
