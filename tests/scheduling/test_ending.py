"""The one judge of an ending."""

from dataclasses import dataclass, field, replace

import pytest
from fake_model import request

from pagoda.cache import CacheManager
from pagoda.scheduling import Ending, Scheduler, Sequence, judge
from pagoda.structured import StructuredOutputs

STOP, EOS = 3, 9


def sequence_of(output: list[int], *, max_model_len: int = 64, **sampling: object) -> Sequence:
    """A sequence with a prompt of two tokens that has just got the last token of `output`."""
    scheduler = Scheduler(
        CacheManager(16, 4), max_num_batched_tokens=8, max_num_seqs=1, max_model_len=max_model_len
    )
    asked = request("a", [1, 2], **sampling)  # type: ignore[arg-type]
    [sequence] = scheduler.add(replace(asked, eos_token_ids=frozenset((EOS,))))
    for token_id in output:
        sequence.append(token_id)
    return sequence


@pytest.mark.parametrize(
    ("output", "sampling", "expected"),
    [
        ([5], {}, None),
        ([5, STOP], {"stop_token_ids": (STOP,)}, Ending("stop", STOP)),
        ([5, EOS], {}, Ending("stop")),
        ([5, EOS], {"ignore_eos": True}, None),
        ([5, EOS], {"ignore_eos": True, "stop_token_ids": (EOS,)}, Ending("stop", EOS)),
        ([5, EOS], {"min_tokens": 3}, None),
        ([5, 5, EOS], {"min_tokens": 3}, Ending("stop")),
        (
            [EOS],
            {"min_tokens": 3, "structured_outputs": StructuredOutputs(regex="a")},
            Ending("stop"),
        ),
        ([5] * 7, {"max_tokens": 8}, None),
        ([5] * 8, {"max_tokens": 8}, Ending("length")),
        ([5] * 7 + [EOS], {"max_tokens": 8}, Ending("stop")),
        ([5] * 8, {"max_tokens": 99, "max_model_len": 10}, Ending("length")),
        ([5] * 8, {"max_tokens": None, "max_model_len": 10}, Ending("length")),
    ],
)
def test_tokens_end_a_sequence(output: list[int], sampling: dict, expected: Ending | None) -> None:
    assert judge(sequence_of(output, **sampling)) == expected


@dataclass
class Text:
    """Notes what it is told of the ending, and shows a stop string or none."""

    stop: str | None
    told: list[Ending | None] = field(default_factory=list)

    def find_stop_string(self, ending: Ending | None) -> str | None:
        self.told.append(ending)
        return self.stop


@pytest.mark.parametrize(
    ("output", "by_tokens"),
    [([5], None), ([5] * 8, Ending("length")), ([EOS], Ending("stop"))],
)
def test_text_is_read_knowing_what_the_tokens_say_and_its_stop_string_goes_first(
    output: list[int], by_tokens: Ending | None
) -> None:
    silent, stopping = Text(None), Text("halt")
    assert judge(sequence_of(output), silent) == by_tokens
    assert judge(sequence_of(output), stopping) == Ending("stop", "halt")
    assert silent.told == stopping.told == [by_tokens]


def test_an_ending_is_counted_under_its_reason() -> None:
    scheduler = Scheduler(
        CacheManager(16, 4), max_num_batched_tokens=8, max_num_seqs=4, max_model_len=64
    )
    first, second, third = (scheduler.add(request(name, [1, 2]))[0] for name in "abc")
    scheduler.finish(first, Ending("stop", "halt"))
    scheduler.finish(first, Ending("length"))
    scheduler.finish(second, Ending("length"))
    scheduler.abort("c")
    assert [each.ending for each in (first, second, third)] == [
        Ending("stop", "halt"), Ending("length"), Ending("abort"),
    ]  # fmt: skip
    assert scheduler.stats().num_finished == {"stop": 1, "length": 1, "abort": 1}
