import pytest
import torch

from dsacp.app.model.sampling import sample_rows, shift_ids, top_margin, verify

K = 3
STARTS = torch.tensor([0, 4, 8, 9, 14, 18], dtype=torch.int32)
LENGTHS = torch.tensor([20, 31, 7, 5, 0], dtype=torch.int32)
NUM_DRAFTS = torch.tensor([3, 3, 0, 0, 0], dtype=torch.int32)
KNOWN = torch.tensor([-1, -1, -1, 77, -1], dtype=torch.int32)
IDS = torch.arange(100, 118, dtype=torch.int32)
"""Two decodes of K+1 tokens, one of one token, an unfinished prompt of 5, a padded row of 4."""


def rows_of():
    return sample_rows(IDS, STARTS, LENGTHS, NUM_DRAFTS, KNOWN, K)


def verified(sampled):
    rows = rows_of()
    return verify(rows, sampled.int(), NUM_DRAFTS, KNOWN, STARTS, LENGTHS)


def choices(first, second):
    rest = torch.full((3, K + 1), 55)
    return torch.cat((torch.tensor([first, second]), rest))


def test_rows_are_the_last_token_and_the_drafts_before_it():
    rows = rows_of()
    assert rows.rows[0].tolist() == [0, 1, 2, 3]
    assert rows.rows[1].tolist() == [4, 5, 6, 7]
    assert rows.rows[2, 0] == 8
    assert rows.drafts[0].tolist() == [101, 102, 103]
    assert rows.used.sum(1).tolist() == [4, 4, 1, 0, 0]


@pytest.mark.parametrize(
    ("first", "emitted", "rejected"),
    [
        ([1, 2, 3, 4], [1, -1, -1, -1], 3),
        ([101, 2, 103, 4], [101, 2, -1, -1], 2),
        ([101, 102, 3, 4], [101, 102, 3, -1], 1),
        ([101, 102, 103, 4], [101, 102, 103, 4], 0),
    ],
)
def test_the_longest_equal_prefix_is_accepted_and_one_token_more(first, emitted, rejected):
    result = verified(choices(first, [105, 106, 9, 9]))
    assert result.tokens[0].tolist() == emitted
    assert result.num_rejected.tolist() == [rejected, 1, 0, 0, 0]
    assert result.num_emitted[:2].tolist() == [K + 1 - rejected, 3]
    assert result.sample_indices[:2].tolist() == [3 - rejected, 6]
    assert result.next_tokens[0] == emitted[K - rejected]


def test_prompts_and_padding_emit_nothing_and_keep_the_next_prompt_token():
    result = verified(choices([1, 2, 3, 4], [5, 6, 7, 8]))
    assert result.tokens[3:].tolist() == [[-1] * 4] * 2
    assert result.num_emitted.tolist() == [1, 1, 1, 0, 0]
    assert result.next_tokens[3] == 77
    assert result.sample_indices.tolist() == [0, 4, 8, 13, 0]


def test_shifted_ids_end_each_request_with_its_new_token():
    result = verified(choices([101, 2, 3, 4], [5, 6, 7, 8]))
    shifted = shift_ids(IDS, result, LENGTHS)
    assert shifted.shape == IDS.shape
    assert shifted[:2].tolist() == [101, 2]
    assert shifted[4] == 5
    assert shifted[8] == 55
    assert shifted[9:14].tolist() == [110, 111, 112, 113, 77]


def test_padding_never_overwrites_a_real_row():
    """Repeated starts let padded rows end on the last real token (vLLM V2 padding)."""
    starts = torch.tensor([0, 4, 4, 4], dtype=torch.int32)
    lengths = torch.tensor([20, 0, 0], dtype=torch.int32)
    drafts, known = torch.tensor([3, 0, 0]).int(), torch.full((3,), -1).int()
    rows = sample_rows(IDS[:8], starts, lengths, drafts, known, K)
    sampled = torch.tensor([[101, 102, 103, 9], [1, 1, 1, 1], [2, 2, 2, 2]]).int()
    result = verify(rows, sampled, drafts, known, starts, lengths)
    assert shift_ids(IDS[:8], result, lengths)[3] == 9


def test_top_margin_is_the_distance_to_the_second():
    tokens, margins = top_margin(torch.tensor([[0.0, 3.0, 1.0], [5.0, 4.5, -1.0]]))
    assert tokens.tolist() == [1, 0]
    assert margins.tolist() == [2.0, 0.5]
