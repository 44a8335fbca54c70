"""Upstream's adaptor for Ascend950: flat slots, the KV-quant plan op, other optional arguments."""

import random
from typing import Any

import pytest
from ascend_double import HostDouble, install
from ascend_double.batches import BLOCK, advance, common_metadata, draw, sampled_positions
from ascend_double.calls import check_calls, recorded
from ascend_double.compare import Parity
from ascend_double.ops import NAMES

from dsacp.core import round_up
from dsacp.vllm.ascend.builder import make_builder_class
from dsacp.vllm.ascend.host import Host


@pytest.fixture
def classes(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    modules = install()
    dsa_cp = modules.dsa_cp
    adaptor = __import__("vllm_ascend.device.device_op", fromlist=["A5DeviceAdaptor"])
    monkeypatch.setattr(dsa_cp, "DeviceOperator", adaptor.A5DeviceAdaptor)
    monkeypatch.setattr(dsa_cp, "get_ascend_device_type", lambda: dsa_cp.AscendDeviceType.A5)
    stock = dsa_cp.AscendDSACPMetadataBuilder
    return stock, make_builder_class(stock, Host.of(dsa_cp, modules.rope))


def build(builder: Any, common: Any, real: int) -> Any:
    return builder.build(
        0, common, num_reqs_actual=real, common_ratio_to_sas_metadata={}, block_size=BLOCK
    )


@pytest.mark.parametrize("ratio", [1, 4, 128])
def test_target_step_is_equal(classes: tuple[Any, Any], ratio: int) -> None:
    host = HostDouble(3, 4, 2, max_num_seqs=64, max_num_batched_tokens=128)
    rng = random.Random(ratio)
    pair = [host.builder(cls, ratio) for cls in classes]
    parity = Parity(host, ratio, "a5")
    seen: set[str] = set()
    for _ in range(20):
        batch, seed = draw(rng, host), rng.randrange(1 << 30)
        parity.padded_tokens = round_up(batch.tokens, host.tp_size)
        steps, calls = [], []
        for builder in pair:
            common = common_metadata(batch, host, random.Random(seed))
            with recorded() as asked:
                steps.append(build(builder, common, batch.real))
            calls.append(asked)
            seen |= {name for name, _ in asked}
        parity.check(*steps, sum(batch.lengths), batch.real)
        check_calls(*calls)
        slots = steps[1].req_metadata.slot_mapping
        assert slots is None or slots.dim() == 1
    assert seen == ({NAMES[1], NAMES[2]} if ratio == 4 else {NAMES[1]})


def test_draft_steps_are_equal(classes: tuple[Any, Any]) -> None:
    host = HostDouble(3, 4, 1, max_num_seqs=128, max_num_batched_tokens=128)
    rng = random.Random(9)
    pair = [host.builder(cls) for cls in classes]
    parity = Parity(host, family="a5")
    graphs = [batch for batch in (draw(rng, host) for _ in range(60)) if batch.graph]
    for batch in graphs:
        steps: list[list[Any]] = []
        calls = []
        for builder in pair:
            common = common_metadata(batch, host, random.Random(batch.tokens))
            proposer, positions = host.proposer(builder), sampled_positions(batch, common).clone()
            steps.append([])
            with recorded() as asked:
                for index in (1, 2):
                    common, metadata = advance(proposer, index, common, batch, positions)
                    steps[-1].append(metadata)
            calls.append(asked)
        check_calls(*calls)
        parity.padded_tokens = round_up(batch.tokens, host.tp_size)
        for left, right in zip(*steps, strict=True):
            parity.check(left, right, batch.real, batch.real)
    assert len(graphs) > 5
