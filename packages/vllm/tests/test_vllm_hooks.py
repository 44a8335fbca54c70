"""Signatures are checked, versions are not. Needs no vLLM."""

from dataclasses import dataclass

from dsacp.vllm.field_map import FROM_BUILDER, FROM_STOCK, LOCAL
from dsacp.vllm.hooks import Hook, check_fields, check_hooks, stock_hooks
from dsacp.vllm.window import LocalWindow


class Cache:
    def __init__(self, prefix: str, backend_cls: object = None) -> None: ...


class Builder:
    def build(self, common_prefix_len, common_attn_metadata, fast_build=False): ...

    def build_for_drafting(self, common_attn_metadata, draft_index): ...

    def build_for_cudagraph_capture(self, common_attn_metadata): ...

    def update_draft_decode_metadata(self, metadata): ...

    def update_block_table(self, metadata, blk_table, slot_mapping): ...


def test_a_complete_contract_has_no_blocker() -> None:
    assert list(check_hooks(stock_hooks(Builder, Cache))) == []


def test_a_lost_parameter_is_named_with_what_was_found() -> None:
    class Changed(Builder):
        def build_for_drafting(self, common_attn_metadata, step): ...

    (blocker,) = check_hooks(stock_hooks(Changed, Cache))
    assert "without draft_index" in blocker.found
    assert "common_attn_metadata, step" in blocker.found


def test_an_absent_hook_is_named() -> None:
    (blocker,) = check_hooks([Hook("window builder build", None, ("metadata",))])
    assert blocker.found == "no window builder build"
    assert "0.32" in blocker.remedy


def test_lost_fields_are_named() -> None:
    @dataclass
    class Metadata:
        block_table: int

    (blocker,) = check_fields(Metadata, ["block_table", "slot_mapping"])
    assert blocker.found == "Metadata without the fields slot_mapping"


def test_every_field_has_one_source() -> None:
    assert not FROM_BUILDER.keys() & FROM_STOCK.keys()


def test_the_local_map_names_the_rows_that_exist() -> None:
    assert LOCAL.keys() | {"shard"} == LocalWindow.__dataclass_fields__.keys()
