import pytest
import torch

from allranks.testing.fixtures import generator_of_rank, seed_of


def test_the_agents_seed_takes_precedence_over_the_node_id():
    assert seed_of("a::b", {"ALLRANKS_SEED": "4294967295"}) == 4294967295


def test_without_an_agent_each_test_has_a_fixed_seed():
    assert seed_of("a::b", {}) == seed_of("a::b", {}) != seed_of("a::c", {})


@pytest.mark.parametrize(("seed", "rank"), [(7, 1), (8, 0), (71, 0), (7, 10)])
def test_ranks_and_seeds_draw_different_numbers(seed, rank):
    def draw(*who):
        return torch.rand(8, generator=generator_of_rank(*who))

    assert torch.equal(draw(seed, rank), draw(seed, rank))
    assert not torch.equal(draw(seed, rank), draw(7, 0))


def test_rank_numbers_are_separated():
    assert generator_of_rank(7, 11).initial_seed() != generator_of_rank(71, 1).initial_seed()
