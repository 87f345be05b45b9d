"""Codes of errors that a client may be told before an answer or in the middle of one."""

from __future__ import annotations

TENANT_FULL, SERVER_FULL = "rate_limit_exceeded", "server_overloaded"
"""Nothing is left: of a tenant's own share, and of all there is."""
SHUTTING_DOWN = "server_shutting_down"
TIMED_OUT = "request_timeout"
