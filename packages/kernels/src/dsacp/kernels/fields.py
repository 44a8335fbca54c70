"""The fields of one draft step of one KV group, in the order of the layout tensors."""

DRAFT_FIELDS = (
    "query_start_loc",
    "seq_lens",
    "local_query_start_loc",
    "local_seq_lens",
    "start_pos",
    "positions",
    "slot_mapping",
)
"""Last axis of ``layout``: global starts and lengths, the rank's own, and the token fields."""

START_FIELDS = ("query_start_loc", "local_query_start_loc")
TOKEN_FIELDS = ("positions", "slot_mapping")


def field_length(field: str, rows: int, padded_tokens: int) -> int:
    """Return the int32 words that ``field`` has for a step of ``rows`` requests."""
    if field in TOKEN_FIELDS:
        return padded_tokens
    return rows + 1 if field in START_FIELDS else rows
