from __future__ import annotations

import numpy as np
import torch
from device_tensors import DEVICE, DTYPES, random_tensor
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda.kernels.gpu.embed import embed

VOCAB, NUM_DRAWN = 40, 7


@settings(max_examples=40, deadline=None)
@given(
    token_ids=st.lists(st.integers(-NUM_DRAWN, VOCAB - 1), max_size=6),
    width=st.sampled_from((1, 24, 64, 100, 576)),
    dtype=st.sampled_from(DTYPES),
    index_dtype=st.sampled_from((torch.int32, torch.int64)),
)
def test_a_negative_id_is_one_that_was_drawn(
    token_ids: list[int], width: int, dtype: torch.dtype, index_dtype: torch.dtype
) -> None:
    rng = np.random.default_rng(len(token_ids))
    embedding = random_tensor(rng, (VOCAB, width), dtype)
    drawn = rng.integers(0, VOCAB, NUM_DRAWN)
    stream = torch.full((len(token_ids), width), torch.nan, device=DEVICE)
    ids = torch.tensor(token_ids, dtype=index_dtype, device=DEVICE)
    embed(stream, embedding, ids, torch.from_numpy(drawn).to(DEVICE))
    expected = [drawn[-1 - token_id] if token_id < 0 else token_id for token_id in token_ids]
    assert torch.equal(stream, embedding[expected].float())
