"""Signatures are checked, versions are not. Needs no vLLM."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from dsacp.vllm.contract import attention_hooks, builder_hooks, kernel_hooks
from dsacp.vllm.field_map import FROM_BUILDER, FROM_STOCK, LOCAL
from dsacp.vllm.hooks import Hook, check_fields, check_flag, check_hooks
from dsacp.vllm.window import LocalWindow


class Base:
    def build(self, common_prefix_len, common_attn_metadata, fast_build=False): ...

    def update_draft_decode_metadata(self, metadata): ...


class Builder(Base):
    def build(
        self, common_prefix_len, common_attn_metadata, fast_build=False, replay_start=None
    ): ...

    def build_for_drafting(self, common_attn_metadata, draft_index): ...

    def build_for_cudagraph_capture(self, common_attn_metadata): ...

    def update_draft_decode_metadata(self, metadata): ...

    def update_block_table(self, metadata, blk_table, slot_mapping): ...


def token_to_req(query_start_loc, out, num_mapped_tokens, num_tokens): ...


def window_rows(
    swa_indices, swa_lens, window_size, index_width, left_visible, right_visible,
    query_start_loc, seq_lens, token_to_req_indices, is_valid_token, block_table, block_size,
    replay_start, *, num_tokens, token_offset,
): ...  # fmt: skip


KERNELS = {
    "compute_token_to_req_indices": token_to_req,
    "_COMPUTE_SWA_INDICES_AND_LENS_KERNEL": window_rows,
}


def found(hooks: list[Hook]) -> list[str]:
    return [blocker.found for blocker in check_hooks(hooks)]


def test_a_complete_contract_has_no_blocker() -> None:
    assert found([*builder_hooks(Builder, Base), *kernel_hooks(SimpleNamespace(**KERNELS))]) == []


def test_a_lost_parameter_is_named_with_what_was_found() -> None:
    class Changed(Builder):
        def build_for_drafting(self, common_attn_metadata, step): ...

    (said,) = found(builder_hooks(Changed, Base))
    assert "without draft_index" in said
    assert "common_attn_metadata, step" in said


def test_a_stub_of_the_abstract_builder_is_no_method() -> None:
    """It is there, has the right signature, and raises NotImplementedError when called."""

    class Lacks(Builder):
        update_draft_decode_metadata = Base.update_draft_decode_metadata

    assert found(builder_hooks(Lacks, Base)) == ["no window builder update_draft_decode_metadata"]


def test_an_ability_that_is_not_claimed_is_named() -> None:
    flag = "supports_draft_decode_metadata_update"
    (blocker,) = check_flag(Builder, flag)
    assert blocker.found == f"Builder without {flag}"
    assert list(check_flag(type("Claims", (), {flag: True}), flag)) == []


@pytest.mark.parametrize("name", KERNELS)
def test_an_absent_kernel_is_named(name) -> None:
    rest = {key: kernel for key, kernel in KERNELS.items() if key != name}
    assert found(kernel_hooks(SimpleNamespace(**rest))) == [f"no {name}"]


def test_arguments_by_position_keep_their_order() -> None:
    def swapped(query_start_loc, out, num_tokens, num_mapped_tokens): ...

    kernels = {**KERNELS, "compute_token_to_req_indices": swapped}
    (said,) = found(kernel_hooks(SimpleNamespace(**kernels)))
    assert "not in the order query_start_loc, out, num_mapped_tokens" in said


def test_attention_methods_are_checked() -> None:
    class Attention:
        def forward_mqa(self, q, kv, output, positions): ...

    order, absent = found(attention_hooks(Attention))
    assert "not in the order self, q, kv, positions, output" in order
    assert absent == "no CPU attention process_weights_after_loading"


def test_what_cannot_be_inspected_is_a_blocker() -> None:
    (blocker,) = check_hooks([Hook("kernel", SimpleNamespace())])  # type: ignore[arg-type]
    assert blocker.found.startswith("kernel without a signature")


def test_lost_fields_are_named() -> None:
    @dataclass
    class Metadata:
        block_table: int

    (blocker,) = check_fields(Metadata, ["block_table", "slot_mapping"])
    assert blocker.found == "Metadata without the fields slot_mapping"


@pytest.mark.parametrize("owner", [lambda: None, Builder, 3])
def test_metadata_that_is_no_dataclass_is_a_blocker(owner) -> None:
    (blocker,) = check_fields(owner, ["block_table"])
    assert blocker.found.endswith("that is no dataclass")


def test_every_field_has_one_source() -> None:
    assert not FROM_BUILDER.keys() & FROM_STOCK.keys()


def test_the_local_map_names_the_rows_that_exist() -> None:
    assert LOCAL.keys() | {"shard"} == LocalWindow.__dataclass_fields__.keys()
