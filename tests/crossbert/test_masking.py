import torch

from crossbert.masking import draw_permutations, draw_uniform


def test_every_row_is_a_permutation_and_no_two_are_alike():
    drawn = draw_permutations(1, 2, range(50), 64)
    assert torch.equal(drawn.sort(dim=1).values, torch.arange(64).expand(50, 64))
    assert len({tuple(row.tolist()) for row in drawn}) == 50


def test_a_rank_draws_its_slice_of_the_global_batch():
    whole = draw_permutations(7, 3, range(8), 32)
    assert torch.equal(draw_permutations(7, 3, [5, 2], 32), whole[[5, 2]])
    assert torch.equal(draw_permutations(7, 3, torch.tensor([5, 2]), 32), whole[[5, 2]])
    assert draw_permutations(7, 3, [], 32).shape == (0, 32)


def test_seed_and_step_change_the_masks_and_the_global_random_state_does_not():
    drawn = draw_permutations(7, 3, range(8), 32)
    torch.manual_seed(99)
    assert torch.equal(draw_permutations(7, 3, range(8), 32), drawn)
    for other in (draw_permutations(8, 3, range(8), 32), draw_permutations(7, 4, range(8), 32)):
        assert not (other == drawn).all(dim=1).any()


def test_the_stream_stays_what_it_is():
    # A checkpoint of today must go on with the same masks tomorrow.
    assert draw_permutations(0, 0, [0], 8).tolist() == [[0, 2, 1, 5, 4, 3, 6, 7]]


def test_every_position_is_masked_equally_often():
    drawn = draw_permutations(0, 0, range(4000), 20)
    share = torch.zeros(20).index_add_(0, drawn[:, 10:].flatten(), torch.ones(4000 * 10)) / 4000
    assert (share - 0.5).abs().max() < 0.04  # five standard errors


def test_uniform_numbers_are_uniform_and_independent_of_the_masks():
    drawn = draw_uniform(0, 0, range(2000), 16)
    assert drawn.dtype == torch.float32
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 0.01
    assert abs(drawn.std() - 12**-0.5) < 0.01
    ranks = draw_permutations(0, 0, range(2000), 16).argsort(dim=1)
    assert not torch.equal(drawn.argsort(dim=1).argsort(dim=1), ranks)


def test_large_seeds_are_seeds_too():
    drawn = [draw_permutations(2**63 - n, 0, [0], 64) for n in (1, 2, 1000)]
    assert not any(torch.equal(drawn[0], other) for other in drawn[1:])
