"""The engine: requests in, a step at a time, outputs out.

Where the device computes on its own, a GPU, the engine is one step ahead of what it knows: it plans
and launches a step while the device is still at the one before, whose tokens it then reads.

    host     plan 1 | launch 1 | plan 2 | launch 2 | read 1, tell | plan 3 | launch 3 | read 2 …
    device                     | step 1            | step 2                           | step 3

A sequence whose next logits depend on the token itself, by penalties or a grammar, is left out of
the step in between; the others go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pagoda.engine import failures
from pagoda.engine.assembler import Assembler
from pagoda.engine.drawing import begin_draws
from pagoda.engine.failures import StepFailedError
from pagoda.engine.grammar_following import follow_grammars
from pagoda.engine.intake import Intake
from pagoda.engine.launched_step import LaunchedStep
from pagoda.engine.outputs import RequestOutput
from pagoda.engine.roster import Roster
from pagoda.engine.runner import Runner
from pagoda.engine.sampling.sampler import SampledToken, Sampler
from pagoda.engine.stats import EngineStats
from pagoda.engine.timeline import Timeline
from pagoda.engine.vocabulary import Vocabulary
from pagoda.models.tokenizer import Tokenizer
from pagoda.request import Request
from pagoda.scheduling import RunAhead, Scheduler, StepPlan, judge
from pagoda.scheduling import Sequence as RunningSequence


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
        other_names: Sequence[str] = (),
    ) -> None:
        """`model_name` is what answers and metrics call the model; by `other_names` clients may ask
        for it as well."""
        self.model_name = model_name
        self.model_names = (model_name, *other_names)
        self.max_model_len = max_model_len
        self.tokenizer = tokenizer
        self.intake = intake
        self.scheduler = scheduler
        self.vocabulary = Vocabulary(tokenizer.backend)
        self.timeline = Timeline()
        self._runner = runner
        self._sampler = sampler
        self._roster = Roster()
        self._ahead: RunAhead[LaunchedStep] = RunAhead(1 if runner.runs_ahead else 0)

    def add(self, request: Request, prompt: str | None = None, *, streams: bool = True) -> None:
        """Take a request in; `prompt` is its text, for the output alone.

        A request that `streams` has an output after each step that brings it further, any other
        the finished one alone. Raises `InvalidRequestError` if its id is in use.
        """
        sequences = self.scheduler.add(request)
        self._roster.add(Assembler(request, prompt, sequences, self.vocabulary, streams))
        self.timeline.arrived(sequences)

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

    def reset_prefix_cache(self) -> None:
        """Forget everything that could be shared; running requests keep what they hold."""
        self.scheduler.cache.forget()

    def stats(self) -> EngineStats:
        """Counts and state as of now."""
        return EngineStats.of(self.scheduler, self.timeline)

    # ---- the parts of a step -----------------------------------------------------------------

    def _follow_grammars(self) -> None:
        """Work out what every constrained sequence may say next."""
        refused = follow_grammars(self._roster.constrained.values())
        if refused:
            self._end(refused)
            raise StepFailedError(refused)

    def _launch(self) -> LaunchedStep | None:
        """Schedule a step, execute it and begin to draw; None if there is nothing to compute."""
        plan = self.scheduler.schedule(self._ahead.held_back)
        if not plan.sequences:
            return None
        self.timeline.scheduled(plan)
        try:
            logits = self._runner.execute(plan, self._ahead.drawn_last)
            launched = begin_draws(plan, logits, self._roster, self._sampler)
            if launched.draws is not None:
                self._runner.keep_drawn(launched.draws)
        except Exception as error:
            raise self._end_failed(plan, error) from error
        return launched

    def _conclude(self, step: LaunchedStep) -> list[RequestOutput]:
        """Wait for what a step has drawn, settle it and tell it."""
        try:
            drawn = step.wait()
        except Exception as error:
            raise self._end_failed(step.plan, error) from error
        sampled = {sequence_id: token for sequence_id, token in drawn.items() if token is not None}
        sick = failures.of_sick_logits(self._roster.requests_of(drawn.keys() - sampled.keys()))
        self._end(sick)
        progressed = self._settle(step.plan, sampled)
        outputs = self._tell(progressed)
        if not self.scheduler.has_unfinished:
            self._ahead.clear()  # whoever is in it has ended
        if sick:
            raise StepFailedError(sick, outputs)
        return outputs

    def _settle(
        self, plan: StepPlan, sampled: Mapping[int, SampledToken]
    ) -> Sequence[RunningSequence]:
        """Give each sequence its token, and end those that have their last; returns them all."""
        tokens = {sequence_id: token.token_id for sequence_id, token in sampled.items()}
        progressed = self.scheduler.update(plan, tokens)
        for sequence in progressed:
            choice = self._roster.choices[sequence.sequence_id]
            token = sampled[sequence.sequence_id]
            if token.logprobs is not None:
                choice.note(token.logprobs, token.token_id)
            ending = judge(sequence, choice if choice.has_stop_strings else None)
            if ending is not None:
                self.scheduler.finish(sequence, ending)
        self.timeline.progressed(progressed)
        return progressed

    def _tell(self, progressed: Sequence[RunningSequence]) -> list[RequestOutput]:
        """The outputs that are due, now that these sequences have got further."""
        due: dict[str, Assembler] = {}
        assemblers = self._roster.assemblers
        for sequence in progressed:
            request_id = sequence.request.request_id
            if assemblers[request_id].is_due_after(sequence):
                due[request_id] = assemblers[request_id]
        outputs = [assembler.output() for assembler in due.values()]
        for output in outputs:
            if output.finished:
                self._forget(output.request_id)
        return outputs

    # ---- the ends of requests ----------------------------------------------------------------

    def _end_failed(self, plan: StepPlan, cause: Exception) -> StepFailedError:
        """End the requests of a step that failed; returns what is to be raised."""
        requests = self._roster.requests_of(one.sequence_id for one in plan.sequences)
        errors = failures.of_a_failed_step(requests, cause)
        self._end(errors)
        if not self.scheduler.has_unfinished:
            self._ahead.clear()
        return StepFailedError(errors)

    def _end(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self.abort(request_id)

    def _forget(self, request_id: str) -> None:
        for choice in self._roster.remove(request_id):
            self.timeline.forget(choice.sequence.sequence_id)
