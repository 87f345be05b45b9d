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
    rows=st.lists(
        st.tuples(st.booleans(), st.integers(0, VOCAB - 1), st.integers(0, NUM_DRAWN - 1)),
        max_size=6,
    ),
    width=st.sampled_from((1, 24, 64, 100, 576)),
    dtype=st.sampled_from(DTYPES),
    scale=st.sampled_from((1.0, 7.25)),
)
def test_a_row_takes_a_known_token_or_one_that_was_drawn(
    rows: list[tuple[bool, int, int]], width: int, dtype: torch.dtype, scale: float
) -> None:
    rng = np.random.default_rng(len(rows))
    embedding = random_tensor(rng, (VOCAB, width), dtype)
    drawn = rng.integers(0, VOCAB, NUM_DRAWN)
    stream = torch.full((len(rows), width), torch.nan, device=DEVICE)
    columns = torch.tensor(rows, dtype=torch.int32, device=DEVICE).reshape(-1, 3).T.contiguous()
    takes_drawn, token_ids, places = columns
    drawn_there = torch.from_numpy(drawn).to(DEVICE)
    embed(stream, embedding, token_ids, takes_drawn, places, drawn_there, scale)
    expected = [drawn[place] if takes else token_id for takes, token_id, place in rows]
    assert torch.equal(stream, embedding[expected].float() * scale)
