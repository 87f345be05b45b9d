"""The engine: requests in, a step at a time, outputs out.

Where the device computes on its own, a GPU, the engine is one step ahead of what it knows: it plans
and launches a step while the device is still at the one before, whose tokens it then reads.

    host     plan 1 | launch 1 | plan 2 | launch 2 | read 1, tell | plan 3 | launch 3 | read 2 …
    device                     | step 1            | step 2                           | step 3

A sequence whose next logits depend on the token itself, by penalties or a grammar, is left out of
the step in between; the others go on.

Where something fails, it fails for those whom it was done for, and for nobody else:

    in the model, the sampler    the requests of that step end; nothing else has been changed
    anywhere else                a change may have broken off: who was in hand ends, and all others
                                 start over, with the same answers (see `Recovery`)

An interrupt, which is nobody's failure, ends those alone whose tokens or text are just changing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from pagoda.cache.curve import HitRateCurve
from pagoda.cache.explainer import MissExplainer
from pagoda.cache.match import UNREAD
from pagoda.cache.miss import Miss
from pagoda.cache.watcher import Lookup
from pagoda.engine import failures
from pagoda.engine.assembler import Assembler
from pagoda.engine.block_lives import BlockLives
from pagoda.engine.cache_snapshot import CacheSnapshot
from pagoda.engine.drawing import begin_draws
from pagoda.engine.failures import INTERRUPTS
from pagoda.engine.grammar_following import follow_grammars
from pagoda.engine.intake import Intake
from pagoda.engine.journal import Journal, NoJournal
from pagoda.engine.launched_step import LaunchedStep
from pagoda.engine.mask_workers import MaskWorkers
from pagoda.engine.meter import Meter
from pagoda.engine.news import News
from pagoda.engine.outputs import RequestOutput
from pagoda.engine.recovery import Recovery
from pagoda.engine.roster import Roster
from pagoda.engine.runner import Runner
from pagoda.engine.sampling.sampler import SampledToken, Sampler
from pagoda.engine.sessions.support import SessionSupport
from pagoda.engine.stats import EngineStats
from pagoda.engine.step_watch import StepWatch
from pagoda.engine.timeline import Timeline
from pagoda.engine.transfers.transfers import NoTransfers, Transfers
from pagoda.engine.usage import Usage, usage_of
from pagoda.engine.vocabulary import Vocabulary
from pagoda.errors import EngineError, PagodaError
from pagoda.models.tokenizer import Tokenizer
from pagoda.request import Request
from pagoda.scheduling import RunAhead, Scheduler, StepPlan, judge
from pagoda.scheduling import Sequence as RunningSequence
from pagoda.sizing.stored_cache import StoredCache

Result = TypeVar("Result")


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
        stored: StoredCache | None = None,
        misses: MissExplainer | None = None,
        curve: HitRateCurve | None = None,
        block_lives: BlockLives | None = None,
        watch: StepWatch | None = None,
        transfers: Transfers | None = None,
        sessions: SessionSupport | None = None,
    ) -> None:
        """`model_name` is what answers and metrics call the model; by `other_names` clients may ask
        for it as well. `stored`: how K and V are, for whoever asks; None: nobody has told.
        `misses`, `curve`, `block_lives`: watch the scheduler's cache; None: nobody is told why
        prefixes are missed, what other sizes would find, how long blocks stay. `watch`: whose
        prefill rate others read. `transfers`: with tiers; None: there are none. `sessions`: what
        conversations by name need; None: they are remembered and no more."""
        self.model_name = model_name
        self.model_names = (model_name, *other_names)
        self.max_model_len = max_model_len
        self.stored = stored
        self.tokenizer = tokenizer
        self.intake = intake
        self.scheduler = scheduler
        self.vocabulary = Vocabulary(tokenizer.backend)
        self.timeline = Timeline()
        self.meter = Meter()
        self.curve = curve
        self.block_lives = block_lives or BlockLives()
        self.watch = watch or StepWatch()
        self.journal: Journal = NoJournal()
        """Who is told of requests that come and go; to be set before the first one comes."""
        self.news = News()
        """What `advance` has brought; whoever tells it clears it."""
        self._misses = misses
        self.transfers: Transfers = transfers or NoTransfers()
        self.sessions = sessions or SessionSupport()
        self._runner = runner
        self._sampler = sampler
        self._num_turns = 0
        """Those in which a step was launched, concluded, or both."""
        self._roster = Roster()
        self._mask_workers = MaskWorkers()
        self.num_steps_ahead = 1 if runner.runs_ahead else 0
        """Steps that may be outstanding while another is decided."""
        self._ahead: RunAhead[LaunchedStep] = RunAhead(self.num_steps_ahead)
        self._due: dict[str, Assembler] = {}
        """The requests whose output is to be told, by their ids."""
        self._in_hand = scheduler.in_hand
        self._recovery = Recovery(
            *(self._in_hand, self._roster, self.news),
            forget=self._forget,
            start_over=self._start_over,
        )

    def add(self, request: Request, prompt: str | None = None, *, streams: bool = True) -> None:
        """Take a request in; `prompt` is its text, for the output alone.

        A request that `streams` has an output after each step that brings it further, any other
        the finished one alone. Raises `InvalidRequestError` if its id is in use. Whatever is
        raised, the request is not here, and everything else is as it was.
        """
        sequences = self.scheduler.open(request)
        assembler = Assembler(request, prompt, sequences, self.vocabulary, streams)
        try:
            self._roster.add(assembler)
            self.timeline.arrived(sequences)
            self.meter.arrived(sequences)
            self.scheduler.enter(sequences)
            self.journal.came(sequences, self._num_turns)
        except BaseException:
            self._forget(request.request_id)
            raise

    def abort(self, request_id: str) -> None:
        """End a request at once and free its blocks; no effect if it has ended."""
        with self._recovery:
            self._in_hand.request_id = request_id
            self._end(request_id)
        self.news.drop(request_id)  # nobody is there to be told

    @property
    def has_unfinished(self) -> bool:
        """There are requests to go on with, or to be told something."""
        return bool(self.scheduler.has_unfinished or self._due or self.news)

    def step(self) -> list[RequestOutput]:
        """Launch a forward pass and conclude one; returns the outputs that are due (see `add`).

        The two are the same, or, where the runner goes ahead, the one before. Raises
        `StepFailedError` if requests have failed, with the outputs of the others; those have ended,
        the engine goes on. A failed pass ends all of its requests. Ended alone are requests whose
        logits are not finite, with an `EngineError`, and before the pass those whose grammar cannot
        be followed any more, with an `InvalidRequestError`.
        """
        self.advance()
        return self.news.take()

    def advance(self) -> None:
        """A step whose outputs and errors are left in `news`. Raises nothing but interrupts."""
        with self._recovery:
            self.watch.begin()
            self.journal.turn_begins(self._num_turns)
            self.transfers.take_in()
            self._follow_grammars()
            launched = self._launch()
            due = self._ahead.advance(launched)
            self._num_turns += launched is not None or due is not None
            if due is not None:
                self._conclude(due)
            self._tell()
            self.transfers.hand_out(is_idle=launched is due is None)
            self.watch.end()

    def finish_recovery(self) -> None:
        """See `Recovery.finish`."""
        self._recovery.finish()

    def tidy(self) -> bool:
        """While nothing runs: one piece of what could wait. False: nothing is left."""
        if not self.transfers.has_stores:
            return False
        self.transfers.hand_out(is_idle=True)
        return True

    def close(self) -> None:
        """Store what is to be stored, for some seconds at most, and give tiers up. Nothing may be
        asked of the engine afterwards."""
        self.transfers.close()

    def require_device(self) -> None:
        """After a step has failed: raises what the device fails with, if it has for good."""
        self._runner.require_device()

    def look_up(self, request: Request) -> Miss:
        """Why no more of a request's prompt would be found if it began now. Changes nothing.

        Raises `EngineError` where nobody watches the cache.
        """
        misses = self._watching_misses()
        cache, tokens = self.scheduler.cache, request.prompt_token_ids
        table = self.scheduler.open_table(request)
        is_read = request.sampling.prompt_logprobs is None
        match = cache.match(table, tokens) if is_read else UNREAD
        is_caching = cache.enable_prefix_caching
        lookup = Lookup.of(table, len(tokens), match, is_caching=is_caching)
        return misses.explain(lookup)

    def cache_snapshot(self) -> CacheSnapshot:
        """The cache and the sequences that are in it, as of now. Changes nothing.

        Raises `EngineError` where nobody watches the cache.
        """
        unfinished = self._roster.unfinished()
        return CacheSnapshot.of(self.scheduler.cache, unfinished, self._watching_misses())

    def reset_prefix_cache(self) -> None:
        """Forget everything of the cache that could be shared, and what is on its way into it;
        running requests keep what they hold, and tiers what they have."""
        with self._recovery:
            self.transfers.abandon_loads()
            self.sessions.abandon_arriving()
            self.scheduler.cache.forget()

    def use_cache(self, do: Callable[[], Result]) -> Result:
        """What `do` returns, which may change the cache. To be called between two steps.

        Raises `EngineError` where it breaks off: what is wrong with it nobody knows, so that
        everybody starts over.
        """
        done: list[Result] = []
        with self._recovery:
            done.append(do())
        if not done:
            raise EngineError("the cache could not be changed")
        return done[0]

    def stats(self) -> EngineStats:
        """Counts and state as of now."""
        return EngineStats.of(self.scheduler, self.timeline, self._misses)

    def usage(self) -> dict[str, Usage]:
        """What each tenant has had, as of now; any thread may ask."""
        return usage_of(self.meter, self.scheduler.cache.holdings())

    def _watching_misses(self) -> MissExplainer:
        if self._misses is None:
            raise EngineError("nobody watches the cache")
        return self._misses

    # ---- the parts of a step -----------------------------------------------------------------

    def _follow_grammars(self) -> None:
        """Work out what every constrained sequence may say next."""
        constrained = self._roster.constrained.values()
        if constrained:
            self._fail(follow_grammars(constrained, self._mask_workers, self._in_hand))

    def _launch(self) -> LaunchedStep | None:
        """Schedule a step, execute it and begin to draw; None if there is nothing to compute."""
        plan = self._schedule()
        if not plan.sequences:
            return None
        self.timeline.scheduled(plan)
        self.meter.scheduled(plan)
        self.watch.hold(plan.num_scheduled_tokens, len(plan.sequences))
        try:
            logits = self._runner.execute(plan, self._ahead.drawn_last)
            launched = begin_draws(plan, logits, self._roster, self._sampler)
            if launched.draws is not None:
                self._runner.keep_drawn(launched.draws)
        except INTERRUPTS:
            raise
        except BaseException as error:  # a library's panic may be no `Exception`
            self._fail_all_of(plan, error)
            return None
        return launched

    def _schedule(self) -> StepPlan:
        """The next step; where that fails, it fails for the sequence that it came to."""
        try:
            return self.scheduler.schedule(self._ahead.held_back)
        except INTERRUPTS:
            self._in_hand.request_id = None  # nobody's answer has changed
            raise

    def _conclude(self, step: LaunchedStep) -> None:
        """Wait for what a step has drawn, and settle it."""
        self.watch.hold(step.plan.num_scheduled_tokens, len(step.plan.sequences))
        try:
            drawn = step.wait()
        except INTERRUPTS:
            raise
        except BaseException as error:
            self._fail_all_of(step.plan, error)
            return
        self.watch.conclude()
        self.timeline.concluded()
        sick = [sequence_id for sequence_id, token in drawn.items() if token is None]
        self._fail(failures.of_sick_logits(self._roster.requests_of(sick)))
        self._settle(step.plan, drawn)
        if not self.scheduler.has_unfinished:
            self._ahead.clear()  # whoever is in it has ended

    def _settle(self, plan: StepPlan, drawn: Mapping[int, SampledToken | None]) -> None:
        """Give each sequence its token, and end those for whom it is the last."""
        for scheduled in plan.sequences:
            token = drawn.get(scheduled.sequence_id)
            sequence = self.scheduler.update(scheduled, None if token is None else token.token_id)
            if sequence is not None and token is not None:
                self._progress(sequence, token)
            self._in_hand.request_id = None

    def _progress(self, sequence: RunningSequence, token: SampledToken) -> None:
        """Note a new token, end the sequence if it is the last, and see whether somebody waits."""
        choice = self._roster.choices[sequence.sequence_id]
        if token.logprobs is not None:
            choice.note(token.logprobs, token.token_id)
        ending = judge(sequence, choice if choice.has_stop_strings else None)
        if ending is not None:
            self.scheduler.finish(sequence, ending)
        self.timeline.progressed(sequence)
        self.meter.progressed(sequence)
        request_id = sequence.request.request_id
        assembler = self._roster.assemblers[request_id]
        if assembler.is_due_after(sequence):
            self._due[request_id] = assembler

    def _tell(self) -> None:
        """Put the outputs that are due into the news."""
        for request_id, assembler in list(self._due.items()):
            self._in_hand.request_id = request_id
            del self._due[request_id]
            output = assembler.output()
            self.news.outputs.append(output)
            self._in_hand.request_id = None  # whatever fails now, it has been answered
            if output.finished:
                self._forget(request_id)

    # ---- the ends of requests ----------------------------------------------------------------

    def _start_over(self) -> None:
        """Compute everybody again whose request is still here."""
        self._ahead.clear()
        self.scheduler.start_over(self._roster.unfinished())
        self.timeline.forget_others(self._roster.choices)
        self.meter.forget_others(self._roster.choices)
        self.watch.end()

    def _fail_all_of(self, plan: StepPlan, cause: BaseException) -> None:
        """End the requests of a step whose computation failed; nothing but that was begun."""
        requests = self._roster.requests_of(one.sequence_id for one in plan.sequences)
        self._fail(failures.of_a_failed_step(requests, cause))
        if not self.scheduler.has_unfinished:
            self._ahead.clear()

    def _fail(self, errors: dict[str, PagodaError]) -> None:
        """End requests and tell each its error."""
        for request_id, error in errors.items():
            self._in_hand.request_id = request_id
            self.news.errors[request_id] = error
            self._end(request_id)
        self._in_hand.request_id = None

    def _end(self, request_id: str) -> None:
        self.scheduler.abort(request_id)
        self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        self._due.pop(request_id, None)
        sequences = [choice.sequence for choice in self._roster.remove(request_id)]
        for sequence in sequences:
            self.timeline.forget(sequence.sequence_id)
            self.meter.forget(sequence.sequence_id)
        self.sessions.known.went(sequences)
        self.journal.went(sequences, self._num_turns)
