"""The command `pagoda`, which `python -m pagoda` is too.

To load the command line takes about a second. What a signal does is settled before that.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

_INTERRUPTED = 130


def main() -> None:
    """Run the command line of this process and exit."""
    try:
        signal.signal(signal.SIGTERM, _end)
        from pagoda.cli.main import main as run_command_line

        run_command_line()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _end(number: int, frame: FrameType | None) -> None:
    """End at once: no download, and no thread that computes, is waited for.

    So does a process without a handler, but the first one of a container: it hears no signal that
    it has no handler for.
    """
    os._exit(128 + number)


if __name__ == "__main__":
    main()
