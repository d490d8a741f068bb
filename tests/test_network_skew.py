"""What ``--network`` does to connections: as it is named, and as it is drawn."""

import math
from collections import Counter

import pytest

from allranks.network_skew import (
    NETWORK_LEVELS,
    disturbances,
    links,
    named_disturbances,
    network_of,
    network_stretch,
    nodes_needed,
)

NAMED = "0-1:late:20ms,0-2:loss:2.5%,1-2:rate:10mbit,0-1:cut:800ms:7,0-1:cut"


def test_disturbances_are_written_as_they_are_read():
    assert network_of(named_disturbances(NAMED)) == NAMED
    assert (network_of(()), named_disturbances("off"), nodes_needed(NAMED)) == ("off", (), 3)


def test_each_is_told_in_words():
    assert [each.words for each in named_disturbances(NAMED)] == [
        "a delay of 20 ms between nodes 0 and 1",
        "a loss of 2.5 % between nodes 0 and 2",
        "a rate of 10 Mbit/s between nodes 1 and 2",
        "a partition of 800 ms between nodes 0 and 1, from packet 7 on",
        "a partition between nodes 0 and 1",
    ]


@pytest.mark.parametrize("text", ["", "0-1", "1-1:cut", "1-0:cut", "0-1:late:0ms", "0-1:late:2%", "0-1:lost:2%"])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError, match="is no disturbance: write 0-1:late:20ms"):
        named_disturbances(text)


@pytest.mark.parametrize("level", NETWORK_LEVELS)
def test_half_of_all_pairs_are_disturbed_in_every_way_and_within_the_level(level):
    drawn = [each for seed in range(400) for each in disturbances(level, seed, 2)]
    kinds = Counter(each.kind for each in drawn)
    assert 150 < len(drawn) < 250
    assert set(kinds) == {"late", "loss", "rate", "cut"}
    for each in drawn:
        least, most = NETWORK_LEVELS[level].ranges[each.kind]
        assert least <= each.value <= most
        assert 1 <= each.first <= 64


def test_a_seed_draws_the_same_again_and_another_one_something_else():
    first = [disturbances("heavy", seed, 4) for seed in range(20)]
    assert first == [disturbances("heavy", seed, 4) for seed in range(20)]
    assert len(set(first)) == 20


def test_limits_are_stretched_by_what_is_injected_at_most():
    assert network_stretch("off", 2) == 0
    assert (network_stretch("light", 2), network_stretch("heavy", 3)) == (2, 24)
    assert network_stretch("0-1:cut:1000ms,0-1:cut", 2) == pytest.approx(4.8)
    for level in NETWORK_LEVELS.values():
        assert 2 * level.ranges["cut"][1] + 0.4 <= level.most


def test_both_ends_of_a_pair_disturb_what_they_receive_and_draw_for_themselves():
    found = named_disturbances("0-1:loss:2%,1-2:cut")
    assert {node: list(links("off", 5, found, node)) for node in range(4)} == {0: ["1"], 1: ["0", "2"], 2: ["1"], 3: []}
    (one,), (other, _) = links("off", 5, found, 0).values(), links("off", 5, found, 1).values()
    assert one["seed"] != other["seed"]
    assert (one["kind"], one["value"]) == (other["kind"], other["value"]) == ("loss", 0.02)
    assert links("off", 5, found, 2)["1"]["value"] == math.inf
