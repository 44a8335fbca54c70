"""Device code that finds a block's requests, lengths, positions and cache positions.

A first-step token finds its request by counting the ends at or before it: one load and a tile of
comparisons, where a binary search is a chain of dependent loads (and scalar code on Ascend).
"""

import triton
import triton.language as tl

from dsacp.kernels.local_metadata.triton import clip

SAMPLES = tl.constexpr(256)
NEVER = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _find_requests(
    query_start_loc, token, first, last, real, rows, GATHER: tl.constexpr, CHUNK: tl.constexpr
):
    """Return how many real requests end at or before each token of ``[first, last]``.

    Also the next end after it, which is its own request's, unless that is to be gathered: on
    Ascend a gather is a scalar loop, on CUDA one more reduction costs more.
    Small chunks compare less, and from ``CHUNK`` rows on cost a look at the chunks' own ends.
    """
    low = 0
    high = 0
    if rows > CHUNK:
        # The tokens of a block are neighbours: their requests lie in a few chunks.
        sample = tl.arange(0, SAMPLES)
        # A mask of scaled lanes would be dropped on Ascend, and every sample read.
        ends = tl.load(
            query_start_loc + CHUNK + sample * CHUNK, mask=sample < real // CHUNK, other=NEVER
        )
        low = tl.sum((ends <= first).to(tl.int32), axis=0)
        high = tl.sum((ends <= last).to(tl.int32), axis=0)
    found = tl.zeros_like(token) + low * CHUNK
    own_end = tl.zeros_like(token) + NEVER
    for chunk in range(low, high + 1):
        request = chunk * CHUNK + tl.arange(0, CHUNK)
        ends = tl.load(query_start_loc + 1 + request, mask=request < rows, other=NEVER)
        ends = tl.where(request < real, ends, NEVER)
        before = ends[None, :] <= token[:, None]
        found += tl.sum(before.to(tl.int32), axis=1)
        if not GATHER:
            own_end = tl.minimum(own_end, tl.min(tl.where(before, NEVER, ends[None, :]), axis=1))
    return found, own_end


@triton.jit
def _masked_rows(masked, bank, CAUSAL: tl.constexpr):
    """Return the rows of the drafts mask that count in a first step: none unless it is a later one.

    A bound, not a mask of its own, so that absent words are not read either.
    """
    return tl.where((bank > 0) & CAUSAL, masked, 0)


@triton.jit
def limit_length(length, bank, max_model_len, SATURATE: tl.constexpr, CAUSAL: tl.constexpr):
    """Return the lengths of a step computed on its own, and the rows that the host reset.

    A causal step ``bank`` has more than ``bank`` tokens in each request: fewer mean that the host
    applied the overflow rule itself, now or in an earlier step.
    """
    later = (bank > 0) & CAUSAL
    if SATURATE:
        over = length < 0
        length = tl.where(later, tl.minimum(length, max_model_len), length)
    else:
        over = later & (length > 0) & ((length > max_model_len) | (length <= bank))
        length = tl.where(over, 1, length)
    return length, over


@triton.jit
def first_tokens(
    query_start_loc,
    seq_lens,
    drafts,
    token,
    first,
    real,
    rows,
    num_tokens,
    masked,
    bank,
    max_model_len,
    SATURATE: tl.constexpr,
    CAUSAL: tl.constexpr,
    GATHER: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Return position, cache position (-1 without) and request of the first step's tokens."""
    last = first + BLOCK - 1
    request, end = _find_requests(query_start_loc, token, first, last, real, rows, GATHER, CHUNK)
    # Starts may pass the step's tokens; what is rounded up to the ranks belongs to nobody.
    owned = (request < real) & (token < num_tokens)
    # Ascend loads every lane and selects afterwards: no address may leave the inputs.
    owner = tl.where(owned, request, 0)
    begin = tl.load(query_start_loc + owner, mask=owned, other=0)
    if GATHER:
        end = tl.load(query_start_loc + tl.minimum(owner + 1, rows), mask=owned, other=0)
    length = tl.load(seq_lens + owner, mask=owned, other=0)
    part = tl.load(drafts + owner, mask=request < _masked_rows(masked, bank, CAUSAL), other=1)
    begin, end = clip(begin, 0, num_tokens), clip(end, 0, num_tokens)
    length = tl.where(part != 0, length, 0)
    length, over = limit_length(length, bank, max_model_len, SATURATE, CAUSAL)
    position = tl.maximum(length - (end - begin), 0) + token - begin
    cached = tl.where((length > 0) & (over == 0), position, -1)
    position = tl.maximum(cached, 0)
    if not CAUSAL:
        # a block may reach past the limit, where a slot would be another request's
        cached = tl.where(position >= max_model_len, -1, cached)
    return position, cached, request


@triton.jit
def _first_start(given, row, last, real, rows, num_tokens, pad_query_len, REPEAT: tl.constexpr):
    """Replace the starts of padded rows, which the inputs do not define."""
    pad = last + tl.zeros_like(row)
    if not REPEAT:
        pad = tl.minimum(pad + (tl.minimum(row, rows) - real) * pad_query_len, num_tokens)
        # The attention op wants the last start to be the padded token count (upstream U38).
        pad = tl.where((row >= rows) & (real < rows), num_tokens, pad)
    return tl.where(row <= real, given, pad)


@triton.jit
def given_rows(
    query_start_loc, seq_lens, drafts, row, rows, num_tokens, masked, bank, CAUSAL: tl.constexpr
):
    """Load the staged starts, ends and lengths of the first step's rows.

    The lengths are 0 on rows that a step computed on its own leaves out.
    """
    begin = tl.load(query_start_loc + row, mask=row <= rows, other=0)
    end = tl.load(query_start_loc + row + 1, mask=row < rows, other=0)
    length = tl.load(seq_lens + row, mask=row < rows, other=0)
    part = tl.load(drafts + row, mask=row < _masked_rows(masked, bank, CAUSAL), other=1)
    begin, end = clip(begin, 0, num_tokens), clip(end, 0, num_tokens)
    silent = (part == 0) | ((bank > 0) & CAUSAL & (end <= begin))
    return begin, end, tl.where(silent, 0, length)


@triton.jit
def first_rows(
    query_start_loc,
    begin,
    end,
    length,
    row,
    real,
    rows,
    num_tokens,
    pad_query_len,
    bank,
    max_model_len,
    SATURATE: tl.constexpr,
    REPEAT: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Return starts, ends and lengths of the first step's rows from the given ones."""
    last = clip(tl.load(query_start_loc + real), 0, num_tokens)
    begin = _first_start(begin, row, last, real, rows, num_tokens, pad_query_len, REPEAT)
    end = _first_start(end, row + 1, last, real, rows, num_tokens, pad_query_len, REPEAT)
    length, _over = limit_length(length, bank, max_model_len, SATURATE, CAUSAL)
    return begin, end, tl.where(row < real, length, 0)


@triton.jit
def _query_lens(query_start_loc, row, rows, num_tokens):
    """Return the query tokens that the first step has of each row."""
    begin = tl.load(query_start_loc + row, mask=row < rows, other=0)
    end = tl.load(query_start_loc + row + 1, mask=row < rows, other=0)
    return clip(end, 0, num_tokens) - clip(begin, 0, num_tokens)


@triton.jit
def later_rows(
    query_start_loc,
    seq_lens,
    num_rejected,
    drafts,
    row,
    step,
    real,
    rows,
    num_tokens,
    masked,
    bank,
    max_model_len,
    SATURATE: tl.constexpr,
    REPEAT: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Return position, cache position, length, start and end of one-token rows, ``step`` >= 1."""
    length = tl.load(seq_lens + row, mask=row < rows, other=0)
    rejected = tl.load(num_rejected + row, mask=row < rows, other=0)
    part = tl.load(drafts + row, mask=row < masked, other=1)
    queries = _query_lens(query_start_loc, row, rows, num_tokens)
    alive = (row < real) & (length > 0) & (queries > 0) & (part != 0)
    base = length - clip(rejected, 0, queries)
    position = tl.where(alive, base + step - 1, -1)
    if SATURATE:
        position = tl.minimum(position, max_model_len - 1)
        cached = position
    else:
        _length, reset = limit_length(length, bank, max_model_len, SATURATE, CAUSAL)
        fewest = bank if CAUSAL else 0
        over = alive & ((position >= max_model_len) | (base <= fewest) | reset)
        cached = tl.where(over, -1, position)
        position = tl.where(over, 0, position)
    begin = row
    end = row + 1
    if REPEAT:
        begin = tl.minimum(begin, real)
        end = tl.minimum(end, real)
    return tl.maximum(position, 0), cached, tl.maximum(position + 1, 0), begin, end
