"""Which field of vLLM's window metadata comes from where. Needs no vLLM to import.

vLLM's window layers read other fields than vllm-ascend's: lists of cache slots a token instead of
lengths a request. Slots that are *written* cover all tokens on every rank; slots that are *read*
cover the rank's own tokens.
"""

FROM_BUILDER = {
    "query_start_loc": "dsacp query_start_loc, a bank a draft step",
    "seq_lens": "dsacp seq_lens, a bank a draft step",
    "slot_mapping": "dsacp slot_mapping as int64, all tokens; a slot that the host masks stays -1",
    "block_table": "the host's persistent table, read in place",
}
"""Fields whose storage is ours."""

FROM_STOCK = {
    "token_to_req_indices": "stock buffer of the step, from dsacp query_start_loc",
    "is_valid_token": "stock buffer of the step, slot_mapping >= 0",
    "decode_swa_indices": "stock buffer of the step, from dsacp starts, lengths and the table",
    "decode_swa_lens": "stock buffer of the step",
    "decode_swa_width": "stock, an integer",
    "prefill_swa_indices": "stock buffer of the step",
    "prefill_swa_lens": "stock buffer of the step",
    "prefill_gather_lens": "stock, prefill rows only",
    "prefill_seq_lens": "a view of dsacp seq_lens",
    "replay_start": "the host's, passed through",
}
"""Fields that the stock builder computes from ours into buffers that belong to the step."""

LOCAL = {
    "query_start_loc": "dsacp local_query_start_loc",
    "seq_lens": "dsacp local_seq_lens",
    "token_to_req": "request of each of the rank's tokens",
    "valid": "slot_mapping >= 0 on the rank's tokens",
    "indices": "cache slots that each of the rank's tokens reads",
    "lens": "how many they are",
}
"""Fields of ``LocalWindow``: the rank's slice under context parallelism."""

NOT_USED = "vLLM rotates inside its fused kernels by position, so RoPE banks are not used here"

HOST_ONLY = {
    "query_start_loc_cpu": "the host's copy",
    "prefill_seq_lens_cpu": "the host's copy, prefill rows",
    "prefill_query_lens_cpu": "the host's copy, prefill rows",
    "prefill_left_visible": "image spans, passed through",
    "prefill_right_visible": "image spans, passed through",
    "flashinfer_decode_topk_lens": "filled by FlashInfer layers",
    "flashinfer_decode_seq_lens": "filled by FlashInfer layers",
    "flashinfer_sparse_index_cache": "filled by FlashInfer layers",
}
"""Tensor fields that we neither write nor need."""
