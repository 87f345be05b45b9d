"""`pagoda serve`: the HTTP server."""

from __future__ import annotations

import ipaddress
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pagoda.cli.engine_flags import ENGINE_FLAGS
from pagoda.cli.engine_start import load_engine, with_model
from pagoda.cli.flags import (
    JSON_NAMES,
    JSON_OBJECT,
    REAL,
    SIZE,
    SWITCH,
    TEXT,
    WHOLE,
    Flag,
    FlagGroup,
    with_flags,
)
from pagoda.cli.server_client import KEY_VARIABLE
from pagoda.cli.terminal import logging_to
from pagoda.cli.writable import require_writable
from pagoda.engine.options import EngineOptions
from pagoda.errors import InvalidOptionError
from pagoda.server.connection_limit import most_connections, warn_of_few
from pagoda.server.interpreter import set_up_interpreter
from pagoda.server.keys import KeyRing
from pagoda.server.listener import bind, start_listening, url_of
from pagoda.server.options import LOG_FORMATS, ServerOptions
from pagoda.server.usage_ledger import require_usable

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


SERVER_FLAGS = FlagGroup(
    "server_options",
    ServerOptions,
    (
        Flag("max_num_queued_reqs", WHOLE, "Sequences that may wait; one more is told 503."),
        Flag(
            "max_num_reqs_per_key",
            WHOLE,
            "Sequences of one tenant at a time; one more is told 429.",
        ),
        Flag(
            "max_num_connections",
            WHOLE,
            "Connections at a time; without it 4096, or what the limit on open files leaves.",
        ),
        Flag("max_body_bytes", SIZE, "Largest body of a request."),
        Flag("max_header_bytes", SIZE, "Largest line and headers of a request."),
        Flag("response_store_bytes", SIZE, "Responses kept for each tenant; 0: none."),
        Flag("request_timeout", REAL, "Seconds that a request may take; 0: no bound."),
        Flag("client_timeout", REAL, "Seconds that a client may keep the server waiting."),
        Flag("shutdown_timeout", REAL, "Seconds to finish what runs once told to stop."),
        Flag("step_timeout", REAL, "Seconds after which a step of the engine hangs."),
        Flag("exit_on_hang", SWITCH, "End the process when a step hangs, to be started again."),
        Flag(
            "allowed_hosts",
            JSON_NAMES,
            "Names that a server without keys answers to, beside addresses and this machine's "
            'names, like ["models.example"]; ["*"]: to all.',
        ),
        Flag(
            "allowed_origins",
            JSON_NAMES,
            "Origins whose pages may use the server (CORS), like "
            '["https://chat.example"]; ["*"]: all.',
        ),
        Flag("allowed_methods", JSON_NAMES, "Methods that these pages may use."),
        Flag("allowed_headers", JSON_NAMES, "Headers that these pages may send."),
        Flag("allow_credentials", SWITCH, "Let browsers send their passwords along."),
        Flag("dev_mode", SWITCH, "Add /reset_prefix_cache and /server_info."),
        Flag(
            "record_trace",
            TEXT,
            "File for a trace that `pagoda replay` reads: lengths, times and salted hashes.",
        ),
        Flag("record_trace_bytes", SIZE, "Most that this file and older ones take together."),
        Flag("usage_file", TEXT, "File that keeps what tenants have had, over all starts."),
        Flag(
            "reasoning_parser",
            TEXT,
            "The form of what the model thinks before it answers, by vLLM's name; "
            "auto: as its chat template says; none: it stays part of the answer.",
        ),
        Flag(
            "default_chat_template_kwargs",
            JSON_OBJECT,
            "What chat templates are given where a request does not say otherwise, like "
            '{"enable_thinking": false}.',
        ),
        Flag("log_format", TEXT, f"How the log is written: {' or '.join(LOG_FORMATS)}."),
        Flag("disable_log_stats", SWITCH, "Log no line every 10 s on how the engine is doing."),
    ),
)


@with_flags(ADDRESS_FLAGS, SERVER_FLAGS, ENGINE_FLAGS)
def serve(
    address: Address,
    server_options: ServerOptions,
    options: EngineOptions,
    named: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="As --model.")] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="A key that requests must carry; may be given again. Others see a command's "
            f"arguments: better set {KEY_VARIABLE}, or name a file.",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(help="Lines of a key, the name of its tenant and perhaps its quota."),
    ] = None,
    tenant_quota: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TENANT:QUOTA",
            help="What a tenant may have, like alice:floor=10%,cap=50%,weight=2; may be given "
            "again, and goes before the file of keys.",
        ),
    ] = None,
    require_api_key: Annotated[
        bool,
        typer.Option(
            "--require-api-key/--no-require-api-key", help="Do not start where there is no key."
        ),
    ] = False,
) -> None:
    """Serve a model over OpenAI's HTTP API."""
    variable = os.environ.get(KEY_VARIABLE)
    keys = KeyRing.of([*(api_key or []), *([] if variable is None else [variable])], api_key_file)
    if require_api_key and keys.is_open:
        limit = f"is required: set {KEY_VARIABLE} or name a file of keys; to let everybody in "
        raise InvalidOptionError("api_key", None, f"{limit}say --no-require-api-key")
    keys = keys.with_quotas(tenant_quota or [])
    options = replace(with_model(options, named), tenant_quotas=keys.quotas or None)
    console = Console(stderr=True)
    # The port comes first: nobody should wait for a model only to hear that it is taken.
    with (
        bind(address.host, address.port) as listener,
        logging_to(console, "pagoda", "uvicorn", log_format=server_options.log_format),
    ):
        asked_connections = server_options.max_num_connections
        num_connections = most_connections(asked_connections)
        server_options = replace(
            server_options,
            allowed_hosts=(*server_options.allowed_hosts, _without_zone(address.host)),
            max_num_connections=num_connections,
        )
        if server_options.usage_file is not None:
            require_usable(Path(server_options.usage_file))
        if server_options.record_trace is not None:
            require_writable("record_trace", Path(server_options.record_trace))
        engine = load_engine(options, console)

        from pagoda.server.app import create_app
        from pagoda.server.recording import recorded
        from pagoda.server.run import run

        # Clients should not wait for one another's first draw, constraint or chat.
        engine.warm_up()
        if not engine.tokenizer.has_chat_template:
            logger.warning("the model has no chat template: chats will be refused")
        if asked_connections is None:
            warn_of_few(num_connections, engine.max_num_seqs)
        if keys.is_open and not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
            logger.warning("no API key is set: whoever reaches this machine may ask")
        application = create_app(engine, server_options, keys)
        application.state.engine_options = options  # for /server_info
        set_up_interpreter()
        start_listening(listener)
        with recorded(engine, options, server_options):
            logger.info("serving %s on %s", engine.model_name, url_of(listener))
            run(application, listener, server_options)


def _without_zone(host: str) -> str:
    """An address without the interface it is on, like fe80::1%eth0: clients tell none."""
    return host.partition("%")[0]
