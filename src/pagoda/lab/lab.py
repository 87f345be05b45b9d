"""Tries methods of keeping the cache, one model and one text for all of them.

windows     each is read by every method before the next one: a run that is broken off has
            compared the same windows
passkeys    the full cache first: the others are asked only where it finds them
speed       last: what is compared does not wait for it
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pagoda.lab.comparison import Comparison, OnPart
from pagoda.lab.method import FULL, Method
from pagoda.lab.passkey import USABLE, PasskeyScore, PasskeyTest, found_share
from pagoda.lab.report import LabReport, MethodReport
from pagoda.lab.sizes import Sizes
from pagoda.lab.speed import NUM_SEQUENCES, Speed, measure_speed
from pagoda.lab.subject import Subject
from pagoda.lab.text import TokenText


class Lab:
    """One run: `run` measures, `report` tells what was measured so far."""

    def __init__(
        self, subject: Subject, methods: Sequence[Method], sizes: Sizes, text: TokenText
    ) -> None:
        """`methods`: the full cache first. Allocates a small cache for each.

        Raises `InvalidOptionError` for a text that is too short and for more tokens than the model
        takes, `CapacityError` where memory is short.
        """
        sizes.require_within(subject.model.max_model_len)
        if sizes.passkeys:
            text.require(max(sizes.passkeys), f"prompts of {max(sizes.passkeys):,}")
        self._subject, self._methods, self._sizes, self._text = subject, methods, sizes, text
        self._windows = text.windows(sizes.windows, sizes.window)
        self._comparison = Comparison(subject, methods, sizes)
        self._passkeys: dict[Method, tuple[PasskeyScore, ...]] = {}
        self._speeds: dict[Method, Speed] = {}
        self._notes: list[str] = []

    @property
    def num_parts(self) -> int:
        """How often `run` tells that a part begins, at most."""
        num_chunks = -(-self._sizes.window // self._sizes.chunk)
        for_each = 1 + len(self._sizes.passkeys) + 1  # the proof, and the speed
        return len(self._windows) * num_chunks + for_each * len(self._methods)

    def run(self, on_part: OnPart) -> None:
        """Measure everything.

        Raises `IntegrityError` where a cache is not what is read, `EngineError` for logits that are
        no numbers. What was measured until then, or until an interrupt, stays.
        """
        self._comparison.prove(self._windows[0], on_part)
        for number, window in enumerate(self._windows, 1):
            name = f"window {number} of {len(self._windows)}"
            self._comparison.read(window, partial(on_part, name))
        self._look_for_passkeys(on_part)
        for method in self._in_pool:
            on_part(f"{method}: speed")
            prompts = self._windows[:NUM_SEQUENCES]
            self._speeds[method] = measure_speed(self._subject, method, prompts)

    def report(self) -> LabReport:
        """What was measured so far."""
        qualities, noise = self._comparison.qualities()
        numbers = self._subject.numbers_per_token
        rows = zip(self._methods, self._comparison.bytes_per_token, qualities, strict=True)
        return LabReport(
            model=self._subject.model.name,
            dtype=self._subject.model.dtype,
            text=self._text.name,
            window=self._sizes.window,
            methods=tuple(
                MethodReport(
                    method,
                    num_bytes,
                    8 * num_bytes / numbers,
                    quality,
                    self._passkeys.get(method, ()),
                    self._speeds.get(method),
                )
                for method, num_bytes, quality in rows
            ),
            noise_chunk=self._comparison.noise_chunk,
            noise=noise,
            notes=tuple(self._notes),
        )

    @property
    def _in_pool(self) -> Sequence[Method]:
        """Without what lies on a tier, whose speed `benchmarks/tiers.py` measures."""
        return [method for method in self._methods if method.tier_form is None]

    def _look_for_passkeys(self, on_part: OnPart) -> None:
        test = PasskeyTest(self._text, self._subject.model.tokenizer, self._sizes)
        usable = []
        for length in self._sizes.passkeys:
            on_part(f"{FULL}: passkeys in {length:,} tokens")
            scores = test.look(self._subject, FULL, length)
            share = found_share(scores)
            if share >= USABLE:
                usable.append(length)
                self._passkeys[FULL] = self._passkeys.get(FULL, ()) + scores
            else:
                self._notes.append(
                    f"passkeys in {length:,} tokens: the full cache finds {share:.0%}, "
                    "so the other methods were not asked"
                )
        for method in self._in_pool[1:]:
            for length in usable:
                on_part(f"{method}: passkeys in {length:,} tokens")
                scores = test.look(self._subject, method, length)
                self._passkeys[method] = self._passkeys.get(method, ()) + scores
