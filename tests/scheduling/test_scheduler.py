"""The scheduler's behaviour, one story at a time."""

import pytest
from fake_model import FakeModel, expected_output, request

from pagoda.cache import CacheManager
from pagoda.errors import InvalidOptionError, InvalidRequestError
from pagoda.scheduling import Ending, FinishReason, Scheduler, Status
from pagoda.sizing.step_limits import MAX_PROMPT_LOGIT_ROWS


def make(
    num_blocks: int = 64, block_size: int = 4, **limits: object
) -> tuple[Scheduler, FakeModel]:
    options: dict[str, object] = {
        "max_num_batched_tokens": 32, "max_num_seqs": 8, "max_model_len": 128,
    }  # fmt: skip
    scheduler = Scheduler(CacheManager(num_blocks, block_size), **(options | limits))  # type: ignore[arg-type]
    return scheduler, FakeModel(scheduler, num_blocks)


def run(scheduler: Scheduler, model: FakeModel) -> int:
    steps = 0
    while scheduler.has_unfinished:
        model.step()
        steps += 1
    return steps


def test_a_prompt_is_computed_in_chunks_of_the_budget() -> None:
    scheduler, model = make(max_num_batched_tokens=10)
    scheduler.add(request("a", range(25)))
    chunks = [model.step().sequences[0] for _ in range(4)]
    assert [(c.start, c.num_scheduled_tokens) for c in chunks] == [
        (0, 10),
        (10, 10),
        (20, 5),
        (25, 1),
    ]
    assert [c.samples for c in chunks] == [False, False, True, True]
    assert [c.num_logit_rows for c in chunks] == [0, 0, 1, 1]


def test_a_long_prompt_does_not_stall_a_running_stream() -> None:
    scheduler, model = make(max_num_batched_tokens=16)
    (stream,) = scheduler.add(request("stream", [1, 2, 3], max_tokens=20, arrival_time=2.0))
    model.step()
    scheduler.add(request("long", range(100), arrival_time=1.0))
    for _ in range(6):
        before = stream.num_output_tokens
        plan = model.step()
        assert stream.num_output_tokens == before + 1
        assert plan.num_scheduled_tokens == 16


def test_one_sequence_can_be_kept_from_taking_a_whole_step() -> None:
    scheduler, model = make(long_prefill_token_threshold=5)
    scheduler.add(request("long", range(20)))
    scheduler.add(request("short", [3, 2, 1]))
    assert [one.num_scheduled_tokens for one in model.step().sequences] == [5, 3]


def test_no_more_run_than_there_are_seats_or_tokens_in_a_step() -> None:
    for limits in ({"max_num_seqs": 3}, {"max_num_batched_tokens": 3}):
        scheduler, model = make(**limits)
        for number in range(6):
            scheduler.add(request(str(number), [number], max_tokens=3))
        while scheduler.has_unfinished:
            assert len(model.step().sequences) <= 3


def test_first_come_first_served_and_priority() -> None:
    for policy, expected in (("fcfs", ["0", "1", "2"]), ("priority", ["2", "0", "1"])):
        scheduler, model = make(max_num_seqs=1, policy=policy)
        sequences = [
            scheduler.add(request(str(i), [i], max_tokens=1, priority=p, arrival_time=i))[0]
            for i, p in enumerate((1, 1, 0))
        ]
        finished: list[str] = []
        while scheduler.has_unfinished:
            model.step()
            finished += [
                s.request.request_id
                for s in sequences
                if s.ending and s.request.request_id not in finished
            ]
        assert finished == expected


def test_a_shared_prefix_submitted_at_once_is_computed_once() -> None:
    scheduler, model = make(num_blocks=1024, max_num_batched_tokens=64, max_num_seqs=32)
    prefix = [i % 5 for i in range(96)]
    for number in range(32):
        scheduler.add(request(str(number), [*prefix, number, number + 1, 0], max_tokens=1))
    run(scheduler, model)
    assert scheduler.stats().num_computed_tokens == 96 + 32 * 3
    assert scheduler.cache.stats().prefix_hits == 31 * 96


def test_waiters_take_over_when_the_owner_is_aborted() -> None:
    scheduler, model = make(max_num_batched_tokens=8)
    prompt = [i % 5 for i in range(40)]
    scheduler.add(request("owner", prompt))
    (waiter,) = scheduler.add(request("waiter", prompt, max_tokens=3))
    model.step()
    model.step()
    assert waiter.status is Status.WAITING
    scheduler.abort("owner")
    run(scheduler, model)
    assert waiter.num_cached_tokens == 16
    assert waiter.output_token_ids == expected_output(prompt, 3, 128)


def test_who_waits_for_a_prefix_does_not_hold_up_those_behind() -> None:
    scheduler, model = make(max_num_batched_tokens=8)
    prompt = [1] * 40
    scheduler.add(request("owner", prompt, arrival_time=1))
    scheduler.add(request("waiter", prompt, arrival_time=2))
    (other,) = scheduler.add(request("other", [2, 3], arrival_time=3, max_tokens=1))
    for _ in range(6):
        model.step()
    assert other.ending == Ending("length")


def test_choices_share_the_prompt() -> None:
    scheduler, model = make()
    prompt = [1, 2, 3, 4, 5, 6]
    choices = scheduler.add(request("a", prompt, n=4, max_tokens=5))
    model.step()
    assert {choice.status for choice in choices} == {Status.RUNNING}
    assert len({choice.table.block_ids[0] for choice in choices}) == 1
    run(scheduler, model)
    assert {tuple(choice.output_token_ids) for choice in choices} == {
        tuple(expected_output(prompt, 5, 128))
    }
    assert scheduler.stats().num_computed_tokens == 6 + 3 * 1 + 4 * 4
    assert scheduler.cache.num_free_blocks == 64


def test_choices_beyond_the_seats_follow_later() -> None:
    scheduler, model = make(max_num_seqs=2)
    choices = scheduler.add(request("a", [1, 2, 3], n=5, max_tokens=4))
    run(scheduler, model)
    assert [len(choice.output_token_ids) for choice in choices] == [4] * 5


def test_preemption_keeps_published_blocks_and_the_answer() -> None:
    scheduler, model = make(num_blocks=16, max_model_len=64)
    prompts = [[i, i, i + 1, 2, 3, 4, 1, 0] for i in range(4)]
    sequences = [
        scheduler.add(request(str(i), prompt, max_tokens=20, arrival_time=i))[0]
        for i, prompt in enumerate(prompts)
    ]
    run(scheduler, model)
    stats = scheduler.stats()
    assert stats.num_preemptions > 0
    for sequence, prompt in zip(sequences, prompts, strict=True):
        assert sequence.output_token_ids == expected_output(prompt, 20, 64)
    assert scheduler.cache.stats().prefix_queries == 4 * 8, "resuming is not a query"
    needed = sum(len(prompt) + 19 for prompt in prompts)
    assert stats.num_computed_tokens < 2 * needed


def test_who_comes_last_gives_way_even_if_already_in_the_step() -> None:
    # The stream comes last in order, but lacks one token and so goes into the step first; then the
    # long prompt finds no block left for its next chunk.
    scheduler, model = make(num_blocks=9, block_size=2, max_num_batched_tokens=3, max_model_len=18)
    (stream,) = scheduler.add(request("stream", [1, 2], max_tokens=12, arrival_time=2))
    model.step()
    (prompt,) = scheduler.add(request("prompt", range(12), max_tokens=1, arrival_time=1))
    while prompt.ending is None:
        model.step()
        scheduler.cache.check_integrity()
    assert stream.stay == 1
    assert prompt.stay == 0
    run(scheduler, model)
    assert stream.output_token_ids == expected_output([1, 2], 12, 18)


def test_a_hit_counts_the_blocks_it_takes_and_the_copy_it_needs() -> None:
    scheduler, model = make(num_blocks=9, max_model_len=32)
    prompt = list(range(16))
    scheduler.add(request("warm", prompt, max_tokens=1))
    run(scheduler, model)
    scheduler.add(request("first", range(50, 62), max_tokens=9, arrival_time=1))
    model.step()
    # 9 blocks: 4 are cached, 3 are held, and 2 more are spoken for: the 4 of the hit would fit,
    # the copy of its last block does not.
    (again,) = scheduler.add(request("again", prompt, max_tokens=1, arrival_time=2))
    model.step()
    assert again.status is Status.WAITING
    run(scheduler, model)
    assert again.stay == 0
    assert again.output_token_ids == expected_output(prompt, 1, 32)


def test_admission_waits_for_what_runs_to_have_room() -> None:
    scheduler, model = make(num_blocks=32, max_num_batched_tokens=8)
    scheduler.add(request("first", range(100), arrival_time=1))
    scheduler.add(request("second", range(50, 100), arrival_time=2))
    model.step()
    assert scheduler.stats().num_running == 1, "the second does not fit beside the whole first"
    run(scheduler, model)
    assert scheduler.stats().num_preemptions == 0


@pytest.mark.parametrize(
    ("sampling", "reason", "stop_reason", "length"),
    [
        ({"max_tokens": 4}, "length", None, 4),
        ({"max_tokens": 100}, "length", None, 28),
        ({"stop_token_ids": (2,), "max_tokens": 100}, "stop", 2, None),
    ],
)
def test_why_a_sequence_ends(
    sampling: dict, reason: FinishReason, stop_reason: int | None, length: int | None
) -> None:
    scheduler, model = make(max_model_len=32)
    (sequence,) = scheduler.add(request("a", [1, 2, 3, 4], **sampling))
    run(scheduler, model)
    assert sequence.ending == Ending(reason, stop_reason)
    if length is None:
        assert sequence.output_token_ids[-1] == 2
        assert 2 not in sequence.output_token_ids[:-1]
    else:
        assert sequence.num_output_tokens == length
    assert scheduler.stats().num_finished == {reason: 1}


def test_nothing_stops_before_min_tokens() -> None:
    scheduler, model = make()
    every_token = (0, 1, 2, 3, 4)
    (sequence,) = scheduler.add(request("a", [1], stop_token_ids=every_token, min_tokens=5))
    run(scheduler, model)
    assert sequence.num_output_tokens == 5
    assert sequence.ending is not None
    assert sequence.ending.reason == "stop"


def test_prompt_logprobs_compute_every_prompt_row() -> None:
    scheduler, model = make(max_num_batched_tokens=8)
    prompt = [i % 5 for i in range(12)]
    scheduler.add(request("warm", prompt, max_tokens=1))
    run(scheduler, model)
    (sequence,) = scheduler.add(request("a", prompt, prompt_logprobs=1, max_tokens=2))
    rows = [model.step().sequences[0].num_logit_rows for _ in range(3)]
    assert rows == [8, 4, 1]
    assert sequence.num_cached_tokens == 0


def test_prompts_whose_logprobs_are_wanted_share_the_rows_of_a_step() -> None:
    """They wait for one another; who wants none does not wait for them."""
    scheduler, model = make(
        num_blocks=512, max_num_batched_tokens=1024, max_model_len=512, block_size=8
    )
    prompts = [[(i * k) % 5 for i in range(300)] for k in (1, 2, 3)]
    sequences = [
        scheduler.add(request(str(k), prompt, prompt_logprobs=0, max_tokens=3))[0]
        for k, prompt in enumerate(prompts)
    ]
    (other,) = scheduler.add(request("other", [4] * 99, max_tokens=20))
    told: dict[int, list[int]] = {sequence.sequence_id: [] for sequence in sequences}
    for step in range(1, 21):
        plan = model.step()
        assert other.num_output_tokens == step
        num_rows = 0
        for one in plan.sequences:
            if one.sequence_id in told and one.start < 300:
                assert one.num_logit_rows == one.num_scheduled_tokens
                num_rows += one.num_logit_rows
                told[one.sequence_id] += range(one.start, one.stop)
        assert num_rows <= MAX_PROMPT_LOGIT_ROWS
    assert not scheduler.has_unfinished
    for sequence, prompt in zip(sequences, prompts, strict=True):
        assert told[sequence.sequence_id] == list(range(300))
        assert sequence.output_token_ids == expected_output(prompt, 3, 512)


def test_a_request_id_is_used_once_at_a_time() -> None:
    scheduler, model = make()
    scheduler.add(request("a", [1]))
    with pytest.raises(InvalidRequestError, match="request_id"):
        scheduler.add(request("a", [1]))
    run(scheduler, model)
    scheduler.add(request("a", [1]))


@pytest.mark.parametrize(
    "limits",
    [
        {"max_num_batched_tokens": 0},
        {"max_num_seqs": -1},
        {"max_model_len": 0},
        {"policy": "sjf"},
        {"long_prefill_token_threshold": -1},
    ],
)
def test_nonsense_is_refused_by_name(limits: dict[str, object]) -> None:
    with pytest.raises(InvalidOptionError):
        make(**limits)
