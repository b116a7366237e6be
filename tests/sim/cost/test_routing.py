"""How kernel benchmarks hand tokens to experts."""

import pytest

from sim.cost.routing import drawn


def test_balanced_routing_goes_around_the_experts():
    assert drawn(1, 256, 8, 1, 0.0) == (8, 8)
    assert drawn(64, 256, 8, 8, 0.0) == (32, 64)
    assert drawn(16, 256, 8, 8, 0.0) == (16, 16)
    assert drawn(1, 256, 8, 32, 0.0).touched == 1


@pytest.mark.parametrize("exponent", [1.01, 1.2])
@pytest.mark.parametrize("tokens", [1, 8, 100, 5000])
def test_every_choice_is_somebodys(tokens, exponent):
    """One rank has all pairs of tokens and experts; of several, the fullest has at least its share, and no more than all."""
    alone = drawn(tokens, 128, 8, 1, exponent)
    assert alone.rows == pytest.approx(8 * tokens) and alone.touched <= min(128, 8 * tokens)
    for ranks in (2, 8, 32):
        fullest = drawn(tokens, 128, 8, ranks, exponent)
        assert 8 * tokens / ranks <= fullest.rows <= 8 * tokens
        assert fullest.touched <= min(128 // ranks, fullest.rows)


def test_few_choices_fall_on_the_first_rank():
    """With fewer choices than experts all shares round to nothing, and what is left is handed out from the first expert on: one
    token has all of its experts on one of 32 ranks, as the tables have it."""
    assert drawn(1, 256, 8, 32, 1.01) == (8, 8)


def test_draws_are_the_same_each_time():
    drawn.cache_clear()
    first = drawn(64, 128, 8, 4, 1.2)
    drawn.cache_clear()
    assert drawn(64, 128, 8, 4, 1.2) == first and first.rows > 1.1 * drawn(64, 128, 8, 4, 0.0).rows
