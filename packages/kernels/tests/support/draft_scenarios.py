"""Every convention of draft metadata as a named batch; BASE is incident #16168's bucket."""

from draft_oracle import DraftCase

BASE = DraftCase([0, 4, 8, 12], [100, 57, 9], [0, 0, 0], [4, 16, 16], [16, 16, 16], tp=4)
MIXED = DraftCase([0, 5, 6, 10], [5, 40, 20], [0, 0, 4], [4, 16], [16, 16], tp=4)
ALONE = DraftCase([0, 1, 2, 3], [100, 101, 64], [0] * 3, [4], [16], tp=2, max_model_len=100)
TWO_GROUPS = BASE.with_(block_sizes=(16, 64), table_widths=(40, 9))
SILENT = DraftCase(
    [0, 4, 4, 6, 6], [40, 30, 20, 5], [0, 0, 2, 1], [5, 8, 8], [8, 8, 8], tp=4, max_model_len=41
)
SCENARIOS = {
    "dummy_tokens_layout": BASE,
    "requests_layout": BASE.with_(rows=[4, 4, 4], tokens=[16, 4, 4]),
    "repeat_requests_layout": BASE.with_(rows=[4, 4, 4], tokens=[16, 4, 4], repeat=True),
    "repeat_many": BASE.with_(rows=[9, 12], tokens=[16, 12], repeat=True, rank=3),
    "dummy_mixed": MIXED,
    "dummy_mixed_last_rank": MIXED.with_(rank=3),
    "dummy_takes_the_rest": MIXED.with_(rows=[6, 16], pad_query_len=0),
    "dummy_capped": MIXED.with_(rows=[9, 16], pad_query_len=5, rank=2),
    "no_padding": BASE.with_(rows=[3, 3, 3], tokens=[12, 3, 3]),
    "off_grid_tp": MIXED.with_(tp=3, rank=2, rows=[4, 16, 16], tokens=[16, 16, 16]),
    "more_ranks_than_tokens": DraftCase([0, 1], [500], [0], [1, 1], [1, 1], tp=8, rank=0),
    "rank_without_tokens": DraftCase([0, 1], [500], [0], [1, 1], [1, 1], tp=8, rank=7),
    "starts_of_a_larger_capture": BASE.with_(
        rows=[4, 8, 8], tokens=[16, 8, 8], start_counts=[9, 32, 11]
    ),
    "starts_of_a_larger_capture_repeat": BASE.with_(
        rows=[5, 4], tokens=[16, 4], start_counts=[300, 400], repeat=True, rank=2
    ),
    "starts_past_a_full_step": MIXED.with_(rows=[3, 4], tokens=[12, 4], start_counts=[5, 6]),
    "starts_of_an_idle_rank": BASE.with_(
        starts=[0], lens=[], rejected=[], start_counts=[8] * 3
    ).with_(rows=[4, 8, 8], tokens=[16, 8, 8]),
    "rejected": BASE.with_(starts=[0, 4, 8, 12, 16], lens=[103] * 4, rejected=[0, 2, 3, 4]),
    "non_causal": MIXED.with_(causal=False, rank=1),
    "reset": BASE.with_(lens=[100, 99, 98], max_model_len=100, rank=0),
    "saturate": BASE.with_(lens=[100, 99, 98], max_model_len=100, saturate=True),
    "saturate_repeat": BASE.with_(lens=[99, 98, 97], max_model_len=98, saturate=True, repeat=True),
    "zero_rows": DraftCase([0, 1, 2, 3, 4], [7, 0, 0, 0], [0] * 4, [4] * 4, [4] * 4, tp=2),
    "empty_seats": DraftCase([0, 4, 8, 8, 8], [33, 90, 0, 0], [0, 1, 0, 0], [4, 4], [8, 4], tp=4),
    "idle_rank": BASE.with_(starts=[0], lens=[], rejected=[]),
    "idle_repeat": BASE.with_(starts=[0], lens=[], rejected=[], repeat=True, rank=2),
    "idle_no_rows": DraftCase([0], [], [], [0, 0], [0, 0], tp=2),
    "count_above_the_capture": BASE.with_(rows=[3, 3], tokens=[12, 3], told=99),
    "count_below_zero": BASE.with_(starts=[0], lens=[], rejected=[], told=-2),
    "two_groups": TWO_GROUPS,
    "three_block_sizes": BASE.with_(block_sizes=(16, 24, 128), table_widths=(64, 50, 2)),
    "past_table": BASE.with_(table_widths=(4,), table_rows=3),
    "later_bank": MIXED.with_(first_step=2),
    "one_step": MIXED.with_(rows=[4], tokens=[16], first_step=3),
    "alone_reset": ALONE.with_(first_step=1),
    "alone_reset_by_the_host": ALONE.with_(first_step=2, lens=[3, 1, 2]),
    "alone_saturate": ALONE.with_(first_step=1, lens=[1, 140, 100], saturate=True, rank=1),
    "alone_repeat": ALONE.with_(first_step=3, lens=[3, 100, 102], repeat=True),
    "alone_then_more": ALONE.with_(first_step=1, lens=[1, 100, 99], rows=[4] * 3, tokens=[4] * 3),
    "alone_block": ALONE.with_(starts=[0, 4, 8, 12], lens=[101, 3, 60], first_step=1, causal=False),
    "block_past_the_limit": MIXED.with_(causal=False, max_model_len=38, rows=[4], tokens=[16]),
    "nothing_accepted": BASE.with_(lens=[4, 57, 9], rejected=[4, 4, 2]),
    "nothing_accepted_saturate": BASE.with_(lens=[4, 57, 9], rejected=[4, 4, 2], saturate=True),
    "two_rope_tables": TWO_GROUPS.with_(rope=((512, 8), (70, 5))),
    "no_rope": TWO_GROUPS.with_(rope=()),
    "absent_fields": TWO_GROUPS.with_(
        absent=frozenset(
            {(1, 0, "query_start_loc"), (1, 1, "positions"), (0, 2, "slot_mapping")}
            | {(1, step, "start_pos") for step in range(3)}
            | {(0, 1, "sin"), (0, 2, "cos")}
        )
    ),
    "long_prefill": DraftCase([0, 131, 132], [131, 800], [0, 1], [3, 4], [200, 4], tp=8, rank=5),
    "silent_rows": SILENT,
    "silent_rows_repeat": SILENT.with_(repeat=True, saturate=True, rank=2),
    "drafts_mask": BASE.with_(drafts=[1, 0, 7]),
    "drafts_mask_of_nobody": BASE.with_(drafts=[0, 0, 0], saturate=True),
    "drafts_mask_overflow": BASE.with_(lens=[99, 99, 4], max_model_len=100, drafts=[1, 0, 0]),
    "drafts_mask_past_the_batch": MIXED.with_(rows=[9, 12], tokens=[16, 12], drafts=[0, -1, 0]),
    "drafts_mask_non_causal": MIXED.with_(causal=False, drafts=[0, 1, 0]),
    "alone_masked": ALONE.with_(first_step=1, drafts=[0, 1, 0]),
    "alone_masked_saturate": ALONE.with_(first_step=2, saturate=True, drafts=[0, 0, 1], rank=1),
    "alone_masked_then_more": ALONE.with_(
        first_step=1, lens=[9, 100, 50], rows=[4] * 3, tokens=[4] * 3, drafts=[1, 1, 0]
    ),
    "alone_silent_row": ALONE.with_(first_step=1, starts=[0, 1, 1, 2]),
    "too_many_rejected": BASE.with_(rejected=[7, 5, 2**31 - 1]),
    "fewer_than_none_rejected": BASE.with_(rejected=[-2, -(2**31), -1], saturate=True),
    "starts_past_the_tokens": DraftCase(
        [0, 4, 8, 12], [10, 20, 30], [0] * 3, [3] * 3, [10, 3, 3], tp=4
    ),
    "starts_outside_the_tokens": BASE.with_(starts=[-9, 4, 8, 2**31 - 1], repeat=True, rank=3),
}
