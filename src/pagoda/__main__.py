"""`python -m pagoda` is the command `pagoda`."""

from __future__ import annotations

from pagoda.cli.main import main

main()
