"""`pagoda serve`: the HTTP server."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Annotated

import typer
from rich.console import Console

from pagoda.cli.engine_flags import ENGINE_FLAGS
from pagoda.cli.flags import TEXT, WHOLE, Flag, FlagGroup, with_flags
from pagoda.cli.loading import load_engine
from pagoda.cli.terminal import logging_to
from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError
from pagoda.server.listener import listen, url_of

logger = logging.getLogger("pagoda")


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens."""

    host: str = "127.0.0.1"
    port: int = 8000


ADDRESS_FLAGS = FlagGroup(
    "address",
    Address,
    (
        Flag("host", TEXT, "Address to listen on."),
        Flag("port", WHOLE, "Port to listen on; 0 takes a free one."),
    ),
)


@with_flags(ADDRESS_FLAGS, ENGINE_FLAGS)
def serve(
    address: Address,
    options: EngineOptions,
    named: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="As --model.")] = None,
) -> None:
    """Serve a model over OpenAI's HTTP API."""
    if named is not None:
        if options.model is not None:
            raise InvalidOptionError("model", options.model, f"{named} is named as well")
        options = replace(options, model=named)
    console = Console(stderr=True)
    # The port comes first: nobody should wait for a model only to hear that it is taken.
    with listen(address.host, address.port) as listener, logging_to(console, "pagoda", "uvicorn"):
        engine = load_engine(options, console)

        from pagoda.engine.sampler import warm_up
        from pagoda.server.app import create_app
        from pagoda.server.run import run

        # Clients should not wait for one another's first draw or first chat.
        warm_up(temperature=1.0)
        if not engine.has_chat_template:
            logger.warning("the model has no chat template: chats will be refused")
        logger.info("serving %s on %s", engine.model_name, url_of(listener))
        run(create_app(engine), listener)
