"""How much of a layer's experts a step reads.

A token is sent to k of a layer's E experts. Were each as likely as any other, and one token's
choice nothing to the next one's, an expert would be left out by one token with 1 - k/E, by all of
B with (1 - k/E) ** B. So as is expected a step reads

    1 - (1 - k/E) ** B

of the experts (MoESD, arXiv:2505.19645). A router that prefers some, or sends tokens of one text to
the same ones, reads fewer: of all chances that add up to k, equal ones bring in the most experts.
"""

from __future__ import annotations


def share_read(chosen_share: float, num_tokens: int) -> float:
    """The share of a layer's experts that a step of so many tokens reads, as is expected of an even
    router that sends each of them to `chosen_share`, k/E."""
    return 1 - (1 - chosen_share) ** num_tokens
