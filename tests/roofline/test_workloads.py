"""The draw is pinned: figures of other engines were taken on the very same tokens."""

import pytest

from pagoda.errors import InvalidOptionError
from pagoda.roofline import WORKLOADS, draw

SEED_0 = {
    # requests, prompt tokens, output tokens, the first two ids, the last one
    "single": (1, 128, 128, (18751, 5271), 8495),
    "mixed": (32, 8162, 2380, (40642, 35452), 39282),
    "shared": (32, 34816, 1024, (26124, 47520), 1342),
    "long": (1, 4096, 64, (16261, 32988), 31206),
    "longbatch": (8, 16384, 512, (36590, 8443), 14876),
}


def test_every_workload_is_pinned() -> None:
    assert tuple(SEED_0) == WORKLOADS


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_same_seed_is_the_same_work(name: str) -> None:
    work = draw(name, 0)
    facts = (
        len(work),
        sum(len(item.prompt_token_ids) for item in work),
        sum(item.num_output_tokens for item in work),
        work[0].prompt_token_ids[:2],
        work[-1].prompt_token_ids[-1],
    )
    assert facts == SEED_0[name]
    assert draw(name, 0) == work
    assert draw(name, 0, vocab_size=49_152) == work
    assert draw(name, 1) != work


def test_mixed_lengths_stay_in_their_range() -> None:
    work = draw("mixed", 3)
    assert {len(item.prompt_token_ids) in range(64, 513) for item in work} == {True}
    assert {item.num_output_tokens in range(32, 129) for item in work} == {True}


def test_shared_prompts_part_after_1024_tokens() -> None:
    prompts = [item.prompt_token_ids for item in draw("shared", 0)]
    assert {prompt[:1024] for prompt in prompts} == {prompts[0][:1024]}
    assert len({prompt[1024:] for prompt in prompts}) == 32


def test_a_small_vocabulary_has_all_the_ids() -> None:
    (item,) = draw("single", 0, vocab_size=102)
    assert set(item.prompt_token_ids) == {100, 101}


def test_what_is_no_workload_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="workload='double': one of single, mixed"):
        draw("double", 0)
    with pytest.raises(InvalidOptionError, match="vocab_size=100: workloads need"):
        draw("single", 0, vocab_size=100)
