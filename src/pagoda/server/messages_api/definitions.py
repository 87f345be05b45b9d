"""Definitions of tools that a conversation describes itself, where a search has found them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pagoda.errors import InvalidRequestError
from pagoda.server.tools import Tool


class Definitions:
    """Definitions of tools, each of which is told once in a conversation.

    So what was told before them stays as it was, and is found in the cache.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.function.name: tool for tool in tools}
        self._told: set[str] = set()

    def tell(self, name: str) -> str:
        """The definition as JSON, and the name alone from the second time on.

        Raises `InvalidRequestError` where there is no such tool.
        """
        if name in self._told:
            return name
        tool = self._tools.get(name)
        if tool is None:
            limit = "a tool_reference must name one of tools"
            raise InvalidRequestError("messages", name, limit)
        self._told.add(name)
        return json.dumps(tool.for_template(), ensure_ascii=False)
