"""A step that has been given to the device, and whose tokens are not read yet."""

from __future__ import annotations

from dataclasses import dataclass

from pagoda.engine.sampling.sampler import Draws, SampledToken
from pagoda.scheduling import StepPlan


@dataclass(frozen=True, slots=True)
class Launch:
    """One step under way."""

    plan: StepPlan
    drawing: tuple[int, ...]
    """Ids of the sequences that draw a token, in the order of `draws`."""
    draws: Draws | None
    """None where no sequence draws."""
    is_followable: bool
    """The next step can be launched before this one's tokens are known: nobody's next logits are
    to be changed by what is drawn here."""

    def wait(self) -> dict[int, SampledToken]:
        """Each drawing sequence's token. Raises what the step failed with."""
        if self.draws is None:
            return {}
        return dict(zip(self.drawing, self.draws.wait(), strict=True))
