from itertools import pairwise

import pytest
import torch

from dsacp.app.model.caches import PagedCache
from dsacp.app.model.config import ModelConfig
from dsacp.app.model.inputs import Conversations, ModelInputs, StepTokens
from dsacp.app.model.ops import fit_rows, flat_slots, rms_norm, rotate
from dsacp.app.model.weights import make_weights
from dsacp.app.scheduling import EngineStep, RowPlan
from dsacp.core import CapacityError, LayoutError


def angles(count: int, width: int = 6):
    half = torch.rand(count, width // 2, dtype=torch.float64) * 3
    turned = half.repeat_interleave(2, 1)
    return turned.cos(), turned.sin()


def test_rotation_turns_only_the_last_dims_and_turns_back():
    cos, sin = angles(5)
    x = torch.randn(5, 3, 10, dtype=torch.float64)
    turned = rotate(x, cos, sin)
    assert torch.equal(turned[..., :4], x[..., :4])
    assert not torch.allclose(turned[..., 4:], x[..., 4:])
    torch.testing.assert_close(rotate(turned, cos, sin, inverse=True), x)


def test_rotation_is_complex_multiplication_of_interleaved_pairs():
    cos, sin = angles(4)
    x = torch.randn(4, 6, dtype=torch.float64)
    pairs = torch.view_as_complex(x.view(4, 3, 2))
    turned = pairs * torch.complex(cos[:, ::2], sin[:, ::2])
    torch.testing.assert_close(rotate(x, cos, sin), torch.view_as_real(turned).flatten(1))


def test_rms_norm_has_unit_mean_square():
    x = rms_norm(torch.randn(3, 64, dtype=torch.float64) * 9)
    torch.testing.assert_close(x.square().mean(-1), torch.ones(3, dtype=torch.float64))


def test_slot_minus_one_writes_nothing_that_a_page_holds():
    cache = PagedCache.allocate(3, 4, 2, torch.float64, torch.device("cpu"))
    rows = torch.arange(6.0, dtype=torch.float64).view(3, 2)
    cache.write(torch.tensor([7, -1, 2], dtype=torch.int32), rows)
    written = cache.pages.flatten(0, 2).isfinite().all(1)
    assert written.nonzero().flatten().tolist() == [2, 7]
    assert cache.pages[1, 3, 0].tolist() == [0.0, 1.0]


def test_flat_slots_follow_the_request_s_own_table():
    table = torch.tensor([[5, 3], [2, 9]], dtype=torch.int32)
    requests = torch.tensor([1, 0, -1], dtype=torch.int32)
    positions = torch.tensor([[0, 4], [7, 1], [0, 0]])
    assert flat_slots(table, requests, positions, 4)[:2].tolist() == [[8, 36], [15, 21]]


def test_fit_rows_cuts_or_adds_zero_rows():
    x = torch.ones(3, 2)
    assert fit_rows(x, 2).shape == (2, 2)
    assert fit_rows(x, 5).sum(1).tolist() == [2, 2, 2, 0, 0]


def test_inputs_keep_their_addresses_and_clean_what_a_larger_step_left():
    inputs = ModelInputs.allocate(6, 3, torch.device("cpu"))
    address = inputs.token_ids.data_ptr()
    inputs.write(StepTokens((9, 9, 9, 9, 9), (1, 1, 1), (7, 7, 7)))
    inputs.write(StepTokens((4, 5), (1,), (-1,)))
    assert inputs.token_ids.tolist() == [4, 5, 0, 0, 0, 0]
    assert inputs.num_drafts.tolist() == [1, 0, 0]
    assert inputs.known_next.tolist() == [-1, -1, -1]
    assert inputs.token_ids.data_ptr() == address


def test_a_step_that_does_not_fit_changes_no_input():
    inputs = ModelInputs.allocate(2, 1, torch.device("cpu"))
    with pytest.raises(CapacityError, match="3 tokens.*hold 2"):
        inputs.write(StepTokens((1, 2, 3), (0,), (-1,)))
    assert inputs.token_ids.tolist() == [0, 0]


def test_conversations_give_prompt_then_last_sampled_token_and_drafts():
    texts = Conversations({0: 5}, 100, seed=3)
    first = EngineStep(0, 0.0, (RowPlan(0, 0, 3, 0, False, False),), False, ())
    last = EngineStep(1, 0.0, (RowPlan(0, 3, 2, 0, False, True),), False, ())
    prompt = (*texts.tokens(first).token_ids, *texts.tokens(last).token_ids)
    assert texts.tokens(first).known_next == (prompt[3],)
    assert texts.tokens(last).known_next == (-1,)
    texts.extend(first, [[]], [[0, 0]])
    texts.extend(last, [[50]], [[51, 52]])
    decode = EngineStep(2, 0.0, (RowPlan(0, 5, 3, 2, True, True),), True, ())
    assert texts.tokens(decode).token_ids == (50, 51, 52)
    assert texts.sampled(0) == (50,)


def test_weights_depend_on_the_seed_alone():
    one, other = make_weights(ModelConfig()), make_weights(ModelConfig())
    assert torch.equal(one.head, other.head)
    assert torch.equal(one.layers[3].query, other.layers[3].query)
    assert not torch.equal(one.head, make_weights(ModelConfig(seed=1)).head)
    pairs = list(pairwise(one.layers))
    assert all(not torch.equal(left.kv, right.kv) for left, right in pairs)


@pytest.mark.parametrize("change", [{"compress_ratios": (1, 8)}, {"rope_dim": 7}, {"rope_dim": 64}])
def test_impossible_sizes_are_refused(change):
    with pytest.raises(LayoutError, match="found"):
        ModelConfig(**change)
