"""Names in the methods of vllm-ascend's builder that ours replaces, as its releases have them.

Ours fills in what these bodies fill in. A body with another name in it, be it an attribute, a
global or a keyword such as a field of the metadata, may give attention what we would not.
"""

NAMED = {
    "build": """
        AscendDSACPMetadataBuilder DeviceOperator _seq_lens_cpu attn_mask attn_state
        block_size block_table block_table_tensor block_tables build_req_metadata
        common_ratio_to_sas_metadata cos cpu decode_threshold format_dsa_slot_mapping get
        get_cos_and_sin_dsa get_head_size hadamard head_dim input_positions long
        metadata_cls model_config num_actual_tokens num_decode_tokens num_decodes
        num_input_tokens num_prefill_tokens num_prefills num_reqs num_reqs_actual
        positions query_start_loc req_metadata seq_lens seq_lens_cpu sin slot_mapping
        split_decodes_and_prefills treat_short_extends_as_decodes use_cache
    """,
    "build_for_drafting": """
        DeviceOperator _seq_lens_cpu attn_mask attn_state block_size block_table
        block_table_tensor block_tables build_req_metadata_for_drafting
        common_attn_metadata compressor_ratio cos cpu decode_threshold draft_index
        format_dsa_slot_mapping get get_cos_and_sin_dsa get_head_size hadamard head_dim
        input_positions long metadata_cls model_config num_actual_tokens num_decode_tokens
        num_decodes num_input_tokens num_prefills num_reqs positions query_start_loc
        req_metadata seq_lens seq_lens_cpu sin slot_mapping spec_slot_mapping
        split_decodes_and_prefills treat_short_extends_as_decodes use_cache
    """,
    "build_req_metadata": """
        AscendDSAReqMetadata DSACPMetadata _build_local_token_metadata _build_qli_metadata
        _build_sas_metadata _cpu_local _ensure_device_local_metadata
        _get_cmp_seqlens_for_metadata _num_compressor_metadata_rows _rope_local block_size
        block_table c clone common_ratio_to_sas_metadata compressor_ratio cos cp_metadata
        cu_cmp_seqlen_list fill_ full_compress_cos full_compress_sin get
        get_full_cos_and_sin_dsa has_prefill hf_config index_topk input_positions int item
        local_cos local_end local_query_start_loc local_seq_lens local_sin local_start max
        max_query_len max_seq_lens min model_config num_actual_tokens num_attention_heads
        num_compressed_tokens num_heads num_input_tokens num_prefills num_reqs
        num_reqs_actual num_tokens_pad pad_to qli_metadata qsl_cpu query_start_loc
        query_start_loc_cpu sas_metadata seq_lens seq_lens_cpu seq_lens_q sin sl_cpu
        slot_mapping start_pos start_pos_prefill tokens_per_rank
    """,
    "build_req_metadata_for_drafting": """
        AscendDSAReqMetadata DSACPMetadata DeviceOperator F PA_ND TND ValueError
        _build_local_token_metadata _zero_i32 batch_size block_size block_table
        build_dspark_swa_indices causal clone cmp_ratio contiguous cos cp_metadata
        cu_cmp_seqlen_list cu_seqlens_cmp_kv cu_seqlens_ori_kv cu_seqlens_q device
        draft_cu_seqlens_ori_kv dspark_swa_indices get_dsa_decode_cu_seqlens_cmp_kv
        get_dsa_decode_cu_seqlens_ori_kv get_dsa_sparse_attn_metadata_kwargs
        get_dsa_sparse_attn_metadata_op get_dspark_sparse_sas_window get_head_size
        has_cmp_kv has_ori_kv head_dim hf_config input_positions int is_noncausal item
        layout_kv layout_q local_cos local_end local_query_start_loc local_seq_lens
        local_sin local_start max max_seqlen_kv max_seqlen_q model_config
        num_actual_tokens num_attention_heads num_heads_kv num_heads_q num_input_tokens
        num_prefills num_reqs num_speculative_tokens num_tokens_pad ori_mask_mode
        ori_win_left ori_win_right pad pad_to qli_metadata query_start_loc
        query_start_loc_cpu sas_metadata seq_lens seq_lens_cpu seqused_kv seqused_q
        setdefault shape sin sliding_window slot_mapping spec_local_query_start_loc
        spec_local_seq_lens spec_slot_mapping speculative_config start_pos str
        tokens_per_rank value vllm_config
    """,
    "_ensure_device_local_metadata": """
        _build_local_token_metadata _device_local clone common_ratio_to_sas_metadata copy_
        get local_end local_query_start_loc local_seq_lens local_start num_input_tokens
        num_reqs num_tokens_pad qsl query_start_loc seq_lens sl sp start_pos_out
        start_pos_prefill tokens_per_rank
    """,
    "_build_local_token_metadata": """
        BLOCK_NUM_REQS COMPUTE_START_POS HAS_TRITON _zero_i32 build_local_metadata_triton
        cat clamp clamp_min copy_ cpu cumsum device dim dtype fill_ get_tp_group max min
        next_power_of_2 rank_in_group tensor torch triton type where world_size zeros_like
    """,
    "build_for_graph_capture": """
        AscendAttentionState DecodeOnly NotImplementedError SpecDecoding attn_state build
        common_attn_metadata common_prefix_len
    """,
}
"""Attributes, globals and keywords of every method, separated by spaces."""

OPTIONAL = frozenset({"cache_group_key"})
"""Names that 0.26.0rc1 has and 0.25.1rc1 has not."""
