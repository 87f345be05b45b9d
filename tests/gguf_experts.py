"""What the tensors of a layer's experts are called in GGUF files, and how they lie there."""

from __future__ import annotations

import re

import numpy as np

_ROUTERS = {
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.gate.moe_statics.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.router.weight": "ffn_gate_inp.weight",
    "mlp.router.bias": "ffn_gate_inp.bias",
    "block_sparse_moe.router.weight": "ffn_gate_inp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "self_attn.sinks": "attn_sinks.weight",
}
"""What the gguf package has no name for, or none that it knows by transformers'."""
_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_EXPERTS = re.compile(r".*experts\.(gate_up|down)_proj(_bias)?")


def expert_tensors(name: str, values: np.ndarray, model_type: str) -> dict[str, np.ndarray]:
    """A tensor of transformers' model under GGUF's names; empty where it is none of experts."""
    found = _LAYER.fullmatch(name)
    if found is None:
        return {}
    prefix, own = f"blk.{found[1]}.", found[2]
    if own in _ROUTERS:
        return {prefix + _ROUTERS[own]: values[0] if len(values) == 1 else values}
    stacked = _EXPERTS.fullmatch(own)
    if stacked is None:
        return {}
    ending = "bias" if stacked[2] else "weight"
    in_turns = model_type == "gpt_oss"
    if in_turns and ending == "weight":
        values = values.swapaxes(1, 2)
    if stacked[1] == "down":
        parts = {"down": values}
    elif in_turns:
        parts = {"gate": values[:, ::2], "up": values[:, 1::2]}
    else:
        parts = dict(zip(("gate", "up"), np.split(values, 2, axis=1), strict=True))
    return {
        f"{prefix}ffn_{part}_exps.{ending}": np.ascontiguousarray(rows)
        for part, rows in parts.items()
    }
