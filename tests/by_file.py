"""Which tests the same process runs, and which are begun with."""

from __future__ import annotations

from pathlib import Path

ALONE = (
    "kernels/test_attention.py",
    "kernels/test_panels.py",
    "kernels/test_team.py",
)
"""Files whose tests have the machine to themselves: first, one after the other.

Later the process that runs them would wait for whatever the others are in the middle of.
"""

PROMISES = (
    "engine/test_promises.py",  # first: its first test has the machine to itself
    "engine/test_coded_promises.py",
    "engine/test_window_promises.py",
    "lab/test_lab_runs.py",
)
"""Files that use the default model, or some of its layers, without a server: one process runs them.
"""

SERVED = (
    "server/test_serve_process.py",  # starts servers, and so does the next, while this one is small
    "server/test_run.py",
    "models/test_default_model.py",
    "test_gpu_benchmark.py",  # starts processes that take a gigabyte, like the next
    "test_examples.py",
    "server/test_server_model.py",
    "server/test_structured.py",
    "server/test_tool_calls.py",
    "server/test_real_clients.py",
    "server/test_responses_clients.py",  # the same clients, whose libraries take 140 MB
    "server/test_anthropic_client.py",
    "server/test_agent_clients.py",
    "server/test_under_load.py",
)
"""Files that use the default model: one process runs them, those of the server share it at last."""

BROWSER = (
    "calculator/test_calculator_in_browser.py",
    "calculator/test_retention_in_browser.py",
    "server/test_page_in_browser.py",
    "server/test_cache_in_browser.py",
    "server/test_plan_page.py",
)
"""Files that share a browser, which takes some 400 MB."""

STORES = (
    "tiers/test_tiers.py",
    "tiers/test_tier_faults.py",
    "tiers/test_redis.py",
    "tiers/test_s3.py",
    "tiers/test_audit_of_shared.py",
)
"""Files that share a Redis and an S3, whose libraries take a second to load."""

LONG = (
    "kernels/gpu/test_compile_ahead.py",
    "planning/test_fields_contract.py",
    "kernels/test_plain_form.py",
    "engine/test_coded_crowds.py",
    "execution/test_coded_cache.py",
    "execution/test_executors.py",
    "execution/test_gpu_executor.py",
    "kernels/gpu/test_prefill_attention.py",
    "server/test_mutations.py",
    "engine/test_gpu_engine.py",
    "engine/test_gpu_latent_engine.py",
    "kernels/gpu/test_decode_attention.py",
)
"""Files whose tests take longest: begun early, they leave no process alone at the end."""

SCOPES = {
    "alone": ALONE,
    "promises": PROMISES,
    "served": SERVED,
    "browser": BROWSER,
    "stores": STORES,
    **{f"tests/{name}": (name,) for name in LONG},
}
"""Files that one process runs, in the order in which processes take them; then every other file."""

_SCOPE_OF = {f"tests/{name}": scope for scope, names in SCOPES.items() for name in names}
_PLACE_OF = {file: place for place, file in enumerate(_SCOPE_OF)}
_GONE = [file for file in _SCOPE_OF if not (Path(__file__).parent.parent / file).exists()]
assert not _GONE, f"tests/by_file.py names files that are not there: {_GONE}"


def scope_of(nodeid: str) -> str:
    """A name that tests share which one process runs: that of some files, or of their file."""
    file = nodeid.partition("::")[0]
    return _SCOPE_OF.get(file, file)


def place_of(nodeid: str) -> int:
    """By which tests are put in order: as their files are named here, others last."""
    return _PLACE_OF.get(nodeid.partition("::")[0], len(_PLACE_OF))
