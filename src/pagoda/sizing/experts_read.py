"""How much of a layer's experts a step reads.

A token is sent to k of a layer's E experts. If all are equally likely and tokens choose
independently, an expert is left out by one token with probability 1 - k/E, and by all of B tokens
with (1 - k/E) ** B. So a step is expected to read

    1 - (1 - k/E) ** B

of the experts (MoESD, arXiv:2505.19645). A router that prefers some, or sends tokens of one text to
the same ones, reads fewer: of all probabilities that add up to k, equal ones reach the most.
"""

from __future__ import annotations


def share_read(chosen_share: float, num_tokens: int) -> float:
    """The share of a layer's experts that a step of so many tokens reads, as is expected of an even
    router that sends each of them to `chosen_share`, k/E."""
    return 1 - (1 - chosen_share) ** num_tokens
