"""Outputs tell how far they are."""

from pagoda.engine.outputs import CompletionOutput, RequestOutput


def test_outputs_tell_how_far_they_are() -> None:
    running = CompletionOutput(0, " fox", [5], delta=" fox")
    done = CompletionOutput(1, "", [2], finish_reason="stop", stop_reason=2)
    output = RequestOutput("1", None, [1, 2, 3], None, [running, done], False, 2)
    assert (running.finished, done.finished) == (False, True)
    assert output.num_prompt_tokens == 3
