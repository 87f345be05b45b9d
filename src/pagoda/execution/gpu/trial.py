"""The largest step there can be, to see what it takes; it writes to no slot."""

from __future__ import annotations

import numpy as np

from pagoda.execution.batch import Batch, GroupPages


def largest_batch(
    max_num_tokens: int,
    max_num_seqs: int,
    max_model_len: int,
    block_size: int,
    max_prompt_logit_rows: int,
    num_groups: int = 1,
) -> Batch:
    """As many tokens of as many sequences as a step may have, and as many rows of logits.

    These are each sequence's last one, and `max_prompt_logit_rows` more where there are so many.
    Every sequence begins with this step, sees all of it in every group of layers and reads the
    first block, whatever is in it.
    """
    num_tokens = min(max_num_tokens, max_num_seqs * max_model_len)
    num_sequences = min(max_num_seqs, num_tokens)
    share, more = divmod(num_tokens, num_sequences)
    counts = np.full(num_sequences, share, np.int32)
    counts[:more] += 1
    query_starts = np.zeros(num_sequences + 1, np.int32)
    query_starts[1:] = np.cumsum(counts)
    rows = np.arange(num_tokens, dtype=np.int32)
    is_last = np.zeros(num_tokens, np.bool_)
    is_last[query_starts[1:] - 1] = True
    others = np.flatnonzero(~is_last)[:max_prompt_logit_rows]
    tables = np.zeros((num_sequences, -(-int(counts[0]) // block_size)), np.int32)
    return Batch(
        token_ids=np.zeros(num_tokens, np.int64),
        positions=rows - np.repeat(query_starts[:-1], counts),
        query_starts=query_starts,
        context_lens=counts,
        groups=(GroupPages.seeing_all(tables, np.full(num_tokens, -1, np.int64)),) * num_groups,
        logit_rows=np.sort(np.concatenate((np.flatnonzero(is_last), others))),
        copy_sources=np.empty(0, np.int64),
        copy_targets=np.empty(0, np.int64),
    )
