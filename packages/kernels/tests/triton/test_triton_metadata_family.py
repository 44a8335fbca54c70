"""Triton kernels of the metadata family against the loop oracles, words around them guarded.

In Triton's interpreter where there is no GPU.
"""

import importlib
import importlib.util
import os

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("the module triton is not installed", allow_module_level=True)
if not torch.cuda.is_available():
    # Read when a kernel module is imported, hence before any launch of this process.
    os.environ.setdefault("TRITON_INTERPRET", "1")

from dsacp.core import CapacityError, TokenShard

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IMPL = "triton"


def test_draft_steps(draft_scenario, check_draft) -> None:
    check_draft(IMPL, draft_scenario, DEVICE)


@pytest.mark.parametrize("rank", [0, 3])
def test_more_requests_than_one_chunk(check_draft, rank: int) -> None:
    """A search over two levels: 600 requests, most of 0 to 2 tokens, 200 padded rows.

    Chunks end inside a block of tokens.
    """
    queries = [10, *(index % 3 for index in range(1, 600))]
    starts = [sum(queries[:index]) for index in range(601)]
    lens = [query and query + index for index, query in enumerate(queries)]
    check_draft(
        IMPL,
        device=DEVICE,
        starts=starts,
        lens=lens,
        rejected=[min(query, 1) for query in queries],
        rows=[800, 640],
        tokens=[850, 640],
        tp=7,
        rank=rank,
        rope=((1024, 4),),
    )


def test_more_groups_and_tables_than_one_launch(check_draft) -> None:
    check_draft(
        IMPL,
        device=DEVICE,
        rows=[4, 16, 4],
        tokens=[16, 16, 4],
        block_sizes=(24, 16, 12),
        table_widths=(64, 64, 64),
        rope=((512, 8), (300, 6), (70, 6), (71, 6), (72, 6), (73, 6), (74, 6)),
    )


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_tensors_of_a_device_that_is_not_current(
    check_draft, check_tails, check_staging, check_slots, check_rope, check_local
) -> None:
    """Launches went to the current device's stream, where nothing orders them with the copies."""
    for other in (1, 0):
        with torch.cuda.device(1 - other):
            device = f"cuda:{other}"
            check_draft(IMPL, device=device)
            check_tails(IMPL, device)
            check_staging(IMPL, 3, 7, True, device)
            check_slots(IMPL, 24, "flat", device)
            check_rope(IMPL, 13, device)
            check_local(IMPL, [0, 7, 8], [30, 1], TokenShard(8, 2, 1), True, device)
            assert torch.cuda.current_device() == 1 - other


def test_more_rows_than_the_search_covers_are_refused(check_draft) -> None:
    with pytest.raises(CapacityError, match="65537"):
        check_draft(IMPL, device=DEVICE, rows=[65537], tokens=[16], rope=())


def test_clear_tails(check_tails) -> None:
    check_tails(IMPL, DEVICE)
    check_tails(IMPL, DEVICE, groups=2, configs=2, absent={(1, 1), (0, 6)}, first_step=1)
    steps = {"rows": [(1, 2), (3, 9), (4, 4)], "lasts": [(3, 1), (4, 2), (5, 0)]}
    check_tails(IMPL, DEVICE, tokens=[(2, 2), (3, 20), (0, 1)], **steps)
    # each run of equal widths is a launch of its own, the fields go with the first
    check_tails(IMPL, DEVICE, configs=4, widths=[8, 4, 8, 8], **steps, tokens=[(2, 9)] * 3)
    check_tails(IMPL, DEVICE, groups=1, configs=2, widths=[4, 7], first_step=1)


@pytest.mark.parametrize("with_rejected", [True, False])
@pytest.mark.parametrize(("reqs", "rows"), [(3, 7), (0, 4), (300, 300), (0, 0)])
def test_staging(check_staging, reqs: int, rows: int, with_rejected: bool) -> None:
    check_staging(IMPL, reqs, rows, with_rejected, DEVICE)


@pytest.mark.parametrize("drafts", ["all", "some"])
@pytest.mark.parametrize(("reqs", "rows"), [(3, 7), (0, 4), (257, 300)])
def test_staging_of_a_mask(check_staging, reqs: int, rows: int, drafts: str) -> None:
    check_staging(IMPL, reqs, rows, True, DEVICE, drafts=drafts, num_tokens=2 * reqs)


@pytest.mark.parametrize("fmt", ["flat", "block_offset"])
@pytest.mark.parametrize("block_size", [1, 24, 128])
def test_slots(check_slots, block_size: int, fmt: str) -> None:
    check_slots(IMPL, block_size, fmt, DEVICE, count=147)


@pytest.mark.parametrize("count", [0, 1, 13])
def test_rope(check_rope, count: int) -> None:
    check_rope(IMPL, count, DEVICE)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("tp", "rank"), [(1, 0), (3, 2), (64, 5)])
def test_local_metadata(check_local, tp: int, rank: int, causal: bool) -> None:
    starts, lens = [0, 7, 7, 8, 61, 97, 103], [30, 0, 1, 53, 99, 0]
    check_local(IMPL, starts, lens, TokenShard(103, tp, rank), causal, DEVICE)
    check_local(IMPL, list(range(301)), [5] * 300, TokenShard(300, tp, rank), causal, DEVICE)


TILES = ["CUDA_TILES", "LARGE_CUDA_TILES", "OTHER_TILES"]


@pytest.fixture(params=TILES)
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, is_npu: bool):
    """Every device cuts its programs in one of these ways."""
    if is_npu and request.param != "OTHER_TILES":
        pytest.skip("an NPU never launches the tiles of CUDA devices")
    plan = importlib.import_module("dsacp.kernels.draft_steps.triton_plan")
    cuts = importlib.import_module("dsacp.kernels.draft_steps.triton_tiles")
    chosen = getattr(cuts, request.param)
    for name in TILES:
        monkeypatch.setattr(cuts, name, chosen)
    plan.plan_launches.cache_clear()
    yield
    plan.plan_launches.cache_clear()


@pytest.mark.usefixtures("tiles")
@pytest.mark.parametrize(("dim", "gap"), [(8, 3), (8, 4), (6, 4)])
def test_tiles_of_every_device(check_draft, dim: int, gap: int) -> None:
    """Rows on 16 bytes, rows beside them, and rows that alternate."""
    changes = {"block_sizes": (16, 64), "table_widths": (40, 9), "rope": ((300, dim),)}
    check_draft(IMPL, device=DEVICE, tp=5, rank=3, rope_gap=gap, **changes)


@pytest.mark.usefixtures("tiles")
def test_requests_are_found_in_any_tiles(check_draft) -> None:
    """Requests without tokens in runs, before the first and after the last token."""
    queries = [0, 0, 5, *[0] * 300, 1, 2, *[index % 2 for index in range(90)], 7, 0, 0]
    starts = [sum(queries[:index]) for index in range(len(queries) + 1)]
    check_draft(
        IMPL,
        device=DEVICE,
        starts=starts,
        lens=[query and query + index for index, query in enumerate(queries)],
        rejected=[0] * len(queries),
        rows=[403, 8],
        tokens=[70, 8],
        rope=((600, 4),),
    )
