"""A step that has been given to the device, and whose tokens are not read yet."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.engine.sampling.sampler import Draws, SampledToken
from pagoda.scheduling import StepPlan


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """One step, launched."""

    plan: StepPlan
    drawing: tuple[int, ...] = ()
    """Ids of the sequences that draw a token, in the order of `draws`."""
    draws: Draws | None = None
    """None where no sequence draws."""
    awaited: frozenset[int] = frozenset()
    """Those of `drawing` whose next logits are changed by what they draw here, penalties say: they
    cannot go on before it is known."""

    def wait(self) -> dict[int, SampledToken | None]:
        """Each drawing sequence's token, None where its logits were not finite.

        Raises what the step failed with.
        """
        if self.draws is None:
            return {}
        return dict(zip(self.drawing, self.draws.wait(), strict=True))
