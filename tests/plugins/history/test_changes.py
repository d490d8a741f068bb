"""Changed places, packed and unpacked."""

import random
import zlib
from array import array
from math import lgamma, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allranks.plugins.history import timeline
from allranks.plugins.history.timeline import Changes, deflated, inflated, pack, unpack

PLACES = st.lists(st.integers(0, 300_000), unique=True).map(sorted)


@given(PLACES, st.integers(1, 1 << 16), st.randoms(use_true_random=False))
def test_what_is_packed_is_unpacked(places, codes, dice):
    before = array("H", [dice.randrange(codes) for _ in places])
    assert unpack(pack(places, before)) == Changes(array("I", places), before)


def test_places_chosen_at_random_take_hardly_more_than_their_entropy():
    most, some = 1_000_000, 10_000
    places = sorted(random.Random(7).sample(range(most), some))  # noqa: S311
    entropy = (lgamma(most + 1) - lgamma(some + 1) - lgamma(most - some + 1)) / log(2) / 8
    assert entropy < len(pack(places, array("H", [1]) * some)) < 1.05 * entropy


@pytest.mark.parametrize("damage", [lambda packed: packed[:-6], lambda _: b"", lambda packed: b"x" + packed])
def test_damaged_bytes_are_an_error(damage):
    with pytest.raises(ValueError, match=r"cut off|length|too large|incorrect|invalid"):
        unpack(damage(pack([3, 400, 401], array("H", [1, 2, 300]))))


def test_places_without_values_are_an_error():
    whole = inflated(pack([3, 4, 5, 6], array("H", [1, 2, 1, 2])))
    with pytest.raises(ValueError, match="4 places have 1 values"):
        unpack(zlib.compress(whole[:-2]))


def test_bytes_that_swell_are_an_error_before_they_fill_memory(monkeypatch):
    monkeypatch.setattr(timeline, "LARGEST", 1000)
    assert len(inflated(deflated(array("H", bytes(1000))))) == 1000
    with pytest.raises(ValueError, match="too large"):
        inflated(deflated(array("H", bytes(2000))))
