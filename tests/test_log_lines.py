"""The plugin that reports what tests log. That `caplog` works is seen where it is asked for."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

from log_lines import LogLines


class Item:
    """A test as the plugin sees it."""

    def __init__(self) -> None:
        self.sections: list[tuple[str, str, str]] = []

    def add_report_section(self, *section: str) -> None:
        self.sections.append(cast(tuple[str, str, str], section))


def test_each_test_is_told_what_was_logged_in_it() -> None:
    plugin: Any = LogLines(SimpleNamespace(formatter=logging.Formatter("%(name)s %(message)s")))
    loop = plugin.pytest_runtestloop()
    next(loop)
    for line in ("one", "two"):
        item = Item()
        phase = plugin.pytest_runtest_call(item)
        next(phase)
        logging.getLogger("pagoda.some").warning(line)
        phase.close()
        assert item.sections == [("call", "log", f"pagoda.some {line}")]
    loop.close()
    assert plugin._handler not in logging.getLogger().handlers
