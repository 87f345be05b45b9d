"""What of an engine sessions need: in one place, since some of it depends on options."""

from __future__ import annotations

from dataclasses import dataclass, field

from pagoda.engine.sessions.blocks import SessionBlocks
from pagoda.engine.sessions.file import SessionFiles
from pagoda.engine.sessions.sessions import Sessions
from pagoda.engine.sessions.shelves import SessionShelves


@dataclass(frozen=True, slots=True)
class SessionSupport:
    """Of one engine."""

    blocks: SessionBlocks | None = None
    """None: of an engine without arrays, which can but remember."""
    shelves: SessionShelves | None = None
    """None: there are no tiers."""
    files: SessionFiles | None = None
    """None: there is no key."""
    known: Sessions = field(default_factory=Sessions)

    def abandon_arriving(self) -> None:
        """What is being brought in is not wanted any more. For the engine's thread."""
        if self.blocks is not None:
            self.blocks.abandon()
