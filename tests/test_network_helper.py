"""When the helper of a node lets a packet pass."""

import pytest

from allranks.network_helper import LOST, IncomingLink


def passed(link, *arrivals, size=1000):
    return [link.release(now, size) for now in arrivals]


def test_a_calm_link_lets_everything_pass_at_once():
    link = IncomingLink()
    assert passed(link, 1.0, 1.1) == [1.0, 1.1]
    assert (link.packets, link.hit) == (2, 0)


def test_a_late_link_delays_every_packet_and_keeps_their_order():
    link = IncomingLink(kind="late", value=0.5)
    assert passed(link, 1.0, 1.1, 3.0) == pytest.approx([1.5, 1.6, 3.5])
    assert link.hit == 3


def test_a_link_costs_no_more_than_it_may():
    """Delays at the same time count once."""
    link = IncomingLink(kind="late", value=0.5, most=0.7)
    assert passed(link, 1.0, 1.1, 3.0, 4.0) == pytest.approx([1.5, 1.6, 3.1, 4.0])
    assert link.hit == 3


def test_a_slow_link_takes_time_for_each_byte():
    link = IncomingLink(kind="rate", value=8000)
    assert passed(link, 1.0, 1.0, 9.0) == pytest.approx([2.0, 3.0, 10.0])


def test_a_partition_begins_with_a_packet_and_ends_after_its_time():
    link = IncomingLink(kind="cut", value=2.0, first=3)
    assert passed(link, 1.0, 2.0, 3.0, 4.9, 5.1, 9.0) == [1.0, 2.0, None, None, 5.1, 9.0]
    assert link.hit == 2


def test_a_loss_is_drawn_from_the_seed_and_costs_what_tcp_takes_to_repeat_it():
    drawn = [passed(IncomingLink(kind="loss", value=0.1, seed=seed), *range(200)) for seed in ("a", "a", "b")]
    assert drawn[0] == drawn[1] != drawn[2]
    assert 5 < drawn[0].count(None) < 50
    few = IncomingLink(kind="loss", value=1.0, most=2.5 * LOST)
    assert passed(few, *range(5)).count(None) == few.hit == 2
