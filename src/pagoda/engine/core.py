"""The engine: requests in, a step at a time, outputs out.

Where the device computes on its own, a GPU, the engine is one step ahead of what it knows: it plans
and launches a step while the device is still at the one before, whose tokens it then reads.

    host     plan 1 | launch 1 | plan 2 | launch 2 | read 1, tell | plan 3 | launch 3 | read 2 …
    device                     | step 1            | step 2                           | step 3

A sequence whose next logits depend on the token itself, by penalties or a grammar, is left out of
the step in between; the others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import torch

from pagoda.engine.assembler import Assembler, Choice
from pagoda.engine.grammar import MatchError
from pagoda.engine.intake import Intake
from pagoda.engine.launched_step import LaunchedStep
from pagoda.engine.outputs import RequestOutput
from pagoda.engine.runner import Runner
from pagoda.engine.sampling.sampler import LogitsError, SampledToken, Sampler
from pagoda.engine.stats import EngineStats
from pagoda.engine.timeline import Timeline
from pagoda.engine.vocabulary import Vocabulary
from pagoda.errors import EngineError, PagodaError
from pagoda.models.tokenizer import Tokenizer
from pagoda.request import Request
from pagoda.scheduling import RunAhead, Scheduler, StepPlan, judge
from pagoda.scheduling import Sequence as RunningSequence

logger = logging.getLogger("pagoda")


class StepFailedError(EngineError):
    """Some requests of one step were ended; others go on."""

    def __init__(
        self, errors: Mapping[str, PagodaError], outputs: Sequence[RequestOutput] = ()
    ) -> None:
        self.errors = errors
        """What each of them, by its id, is told."""
        self.outputs = outputs
        """What the step would have returned: outputs of the others."""
        super().__init__(f"{len(errors)} requests of a step were ended")


class Engine:
    """Serves requests with one model. Not thread-safe: one thread calls it.

    `intake`, which makes requests, may be asked from any thread.
    """

    def __init__(
        self,
        *,
        model_name: str,
        max_model_len: int,
        tokenizer: Tokenizer,
        intake: Intake,
        scheduler: Scheduler,
        runner: Runner,
        sampler: Sampler,
        warm_up_draws: Callable[[], None] = lambda: None,
        chores: Iterator[None] | None = None,
        takes_all_cores: bool = False,
    ) -> None:
        self.model_name = model_name
        self.max_model_len = max_model_len
        self.tokenizer = tokenizer
        self.intake = intake
        self.scheduler = scheduler
        self.timeline = Timeline()
        self.warm_up_draws = warm_up_draws
        """Prepares what the first token that is drawn would wait for."""
        self.takes_all_cores = takes_all_cores
        """Its steps compute on all the cores that this process may use."""
        self.chores = chores or iter(())
        """Makes later steps faster; each turn takes a few milliseconds that nobody waits for."""
        self._runner = runner
        self._sampler = sampler
        self._vocabulary = Vocabulary(tokenizer.backend)
        self._assemblers: dict[str, Assembler] = {}
        self._choices: dict[int, Choice] = {}
        """By sequence id."""
        self._constrained: dict[int, Choice] = {}
        """Those of them that follow a grammar."""
        self._ahead: RunAhead[LaunchedStep] = RunAhead(1 if runner.runs_ahead else 0)
        self._prompt_tokens = 0

    def add(self, request: Request, prompt: str | None = None, *, streams: bool = True) -> None:
        """Take a request in; `prompt` is its text, for the output alone.

        A request that `streams` has an output after each step that brings it further, any other
        the finished one alone. Raises `InvalidRequestError` if its id is in use.
        """
        sequences = self.scheduler.add(request)
        assembler = Assembler(request, prompt, sequences, self._vocabulary, streams)
        self._assemblers[request.request_id] = assembler
        for choice in assembler.choices:
            self._choices[choice.sequence.sequence_id] = choice
            if choice.sampling_row.matcher is not None:
                self._constrained[choice.sequence.sequence_id] = choice
        self.timeline.arrived(sequences)
        self._prompt_tokens += len(request.prompt_token_ids)

    def abort(self, request_id: str) -> None:
        """End a request at once and free its blocks; no effect if it has ended."""
        self.scheduler.abort(request_id)
        self._forget(request_id)

    @property
    def has_unfinished(self) -> bool:
        return self.scheduler.has_unfinished

    def step(self) -> list[RequestOutput]:
        """Launch a forward pass and conclude one; returns the outputs that are due (see `add`).

        The two are the same, or, where the runner goes ahead, the one before. Raises
        `StepFailedError` if a pass fails; its requests are ended, the engine goes on. Ended alone
        are requests whose logits are not finite, with an `EngineError`, and before the pass those
        whose grammar cannot be followed any more, with an `InvalidRequestError`.
        """
        self._follow_grammars()
        due = self._ahead.advance(self._launch())
        return self._conclude(due) if due is not None else []

    def require_device(self) -> None:
        """After a step has failed: raises what the device fails with, if it has for good."""
        self._runner.require_device()

    def token_text(self, token_id: int) -> str:
        """What one token of the vocabulary stands for, alone."""
        return self._vocabulary.token_text(token_id)

    def stats(self) -> EngineStats:
        """Counts and state as of now."""
        scheduler, cache = self.scheduler.stats(), self.scheduler.cache.stats()
        return EngineStats(
            num_requests_running=scheduler.num_running,
            num_requests_waiting=scheduler.num_waiting,
            num_preemptions=scheduler.num_preemptions,
            kv_cache_usage=cache.usage,
            num_blocks=cache.num_blocks,
            block_size=self.scheduler.cache.block_size,
            enable_prefix_caching=self.scheduler.cache.enable_prefix_caching,
            prefix_cache_queries=cache.prefix_queries,
            prefix_cache_hits=cache.prefix_hits,
            num_evicted_blocks=cache.evictions,
            num_computed_tokens=scheduler.num_computed_tokens,
            prompt_tokens=self._prompt_tokens,
            prompt_tokens_cached=self.timeline.num_prompt_tokens_cached,
            prompt_tokens_computed=self.timeline.num_prompt_tokens_computed,
            generation_tokens=self.timeline.num_generation_tokens,
            num_finished=scheduler.num_finished,
        )

    # ---- inside ------------------------------------------------------------------------------

    def _launch(self) -> LaunchedStep | None:
        """Plan a step and give it to the device; None if there is nothing to compute."""
        plan = self.scheduler.schedule(self._ahead.held_back)
        if not plan.sequences:
            return None
        self.timeline.scheduled(plan)
        try:
            logits = self._runner.execute(plan, self._ahead.drawn_last)
            launched = self._begin_draws(plan, logits)
            if launched.draws is not None:
                self._runner.keep_drawn(launched.draws)
        except Exception as error:
            raise self._end_failed(plan, error) from error
        return launched

    def _conclude(self, step: LaunchedStep) -> list[RequestOutput]:
        """Read what a step has drawn, and tell it."""
        try:
            drawn = step.wait()
        except Exception as error:
            raise self._end_failed(step.plan, error) from error
        sampled = {sequence_id: token for sequence_id, token in drawn.items() if token is not None}
        errors = self._end_broken(drawn.keys() - sampled.keys())
        tokens = {sequence_id: token.token_id for sequence_id, token in sampled.items()}
        outputs = self._collect(self.scheduler.update(step.plan, tokens), sampled)
        if not self.scheduler.has_unfinished:
            self._ahead.clear()  # whoever is in it has ended
        if errors:
            raise StepFailedError(errors, outputs)
        return outputs

    def _begin_draws(self, plan: StepPlan, logits: torch.Tensor) -> LaunchedStep:
        """Draw a token for each sampling sequence; take note of prompt log-probabilities."""
        drawing: dict[int, int] = {}
        positions = []
        first = 0
        for scheduled in plan.sequences:
            num_rows = scheduled.num_logit_rows
            last = first + num_rows
            if num_rows > 1 or (num_rows and not scheduled.samples):
                sequence = self.scheduler.sequence(scheduled.sequence_id)
                self._note_prompt_logprobs(sequence, scheduled.start, logits[first:last])
            if scheduled.samples:
                drawing[scheduled.sequence_id] = last - 1
                num_prompt = self.scheduler.sequence(scheduled.sequence_id).num_prompt_tokens
                positions.append(scheduled.stop - num_prompt)
            first = last
        if not drawing:
            return LaunchedStep(plan)
        # Stacked: with a list for an index, PyTorch waits for the device.
        wanted = (
            logits
            if len(drawing) == len(logits)
            else torch.stack([logits[row] for row in drawing.values()])
        )
        rows = [self._choices[sequence_id].sampling_row for sequence_id in drawing]
        draws = self._sampler.begin(wanted, rows, positions)
        changing = zip(drawing, (row.changes_logits for row in rows), strict=True)
        awaited = frozenset(sequence_id for sequence_id, changes in changing if changes)
        return LaunchedStep(plan, tuple(drawing), draws, awaited)

    def _follow_grammars(self) -> None:
        """Work out what every constrained sequence may say next."""
        broken: dict[str, PagodaError] = {}
        for choice in self._constrained.values():
            request = choice.sequence.request
            if choice.sequence.ending is None and request.request_id not in broken:
                try:
                    choice.follow_grammar()
                except MatchError as error:
                    wanted = request.sampling.structured_outputs
                    assert wanted is not None, "a grammar that nobody asked for"
                    refusal = wanted.refuse(f"cannot be followed any further: {error}")
                    logger.warning("request %s is ended: %s", request.request_id, error)
                    broken[request.request_id] = refusal
        if broken:
            for request_id in broken:
                self.abort(request_id)
            raise StepFailedError(broken)

    def _note_prompt_logprobs(
        self, sequence: RunningSequence, start: int, logits: torch.Tensor
    ) -> None:
        """Row i of `logits` tells how likely the prompt's token `start + i + 1` was."""
        prompt = sequence.request.prompt_token_ids
        targets = prompt[start + 1 : start + 1 + len(logits)]
        num_top = sequence.request.sampling.prompt_logprobs
        assert num_top is not None, "logits of a prompt that nobody asked for"
        if targets:
            logprobs = self._sampler.token_logprobs(logits[: len(targets)], targets, num_top)
            assembler = self._assemblers[sequence.request.request_id]
            assembler.add_prompt_logprobs(start + 1, logprobs)

    def _collect(
        self, progressed: Sequence[RunningSequence], sampled: dict[int, SampledToken]
    ) -> list[RequestOutput]:
        due: dict[str, Assembler] = {}
        for sequence in progressed:
            choice, token = self._choices[sequence.sequence_id], sampled[sequence.sequence_id]
            if token.logprobs is not None:
                choice.note(token.logprobs, token.token_id)
            ending = judge(sequence, choice if choice.has_stop_strings else None)
            if ending is not None:
                self.scheduler.finish(sequence, ending)
            assembler = self._assemblers[sequence.request.request_id]
            if assembler.is_due_after(sequence):
                due[sequence.request.request_id] = assembler
        self.timeline.progressed(progressed)
        outputs = [assembler.output() for assembler in due.values()]
        for output in outputs:
            if output.finished:
                self._forget(output.request_id)
        return outputs

    def _forget(self, request_id: str) -> None:
        assembler = self._assemblers.pop(request_id, None)
        for choice in assembler.choices if assembler is not None else ():
            del self._choices[choice.sequence.sequence_id]
            self.timeline.forget(choice.sequence.sequence_id)
            self._constrained.pop(choice.sequence.sequence_id, None)

    def _end_failed(self, plan: StepPlan, cause: Exception) -> StepFailedError:
        errors = self._end([one.sequence_id for one in plan.sequences], cause)
        logger.exception("a step failed; its %d requests are ended", len(errors))
        if not self.scheduler.has_unfinished:
            self._ahead.clear()
        return StepFailedError(errors)

    def _end_broken(self, sequence_ids: Collection[int]) -> dict[str, PagodaError]:
        """End the requests of sequences that have no token, because the model gave no logits."""
        errors = self._end(sequence_ids, LogitsError())
        if errors:
            logger.error("requests whose logits are not finite are ended: %s", ", ".join(errors))
        return errors

    def _end(self, sequence_ids: Iterable[int], cause: Exception) -> dict[str, PagodaError]:
        """End those of the sequences' requests that have not ended; what each is told, by its id.

        An error each: whoever raises one adds to it where it was raised.
        """
        choices = [self._choices.get(sequence_id) for sequence_id in sequence_ids]
        alive = [choice.sequence.request for choice in choices if choice is not None]
        errors: dict[str, PagodaError] = {request.request_id: _failure(cause) for request in alive}
        for request_id in errors:
            self.abort(request_id)
        return errors


def _failure(cause: Exception) -> EngineError:
    failure = EngineError("the engine failed while computing this request")
    failure.__cause__ = cause
    return failure
