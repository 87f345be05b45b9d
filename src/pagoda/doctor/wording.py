"""Figures as people read them."""

from __future__ import annotations


def count(value: float) -> str:
    """Whole from ten on, else with a decimal where there is one: 12,345 or 1.6."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:,.1f}"


def percent(share: float) -> str:
    """A share of 1 in words: 63%. What is there but tiny is not called nothing."""
    return "under 1%" if 0 < share < 0.005 else f"{share:.0%}"


def seconds(value: float) -> str:
    """12 s, 0.42 s, 3.1 ms."""
    if value >= 10:
        return f"{value:,.0f} s"
    return f"{value:.2g} s" if value >= 0.1 else f"{value * 1e3:.2g} ms"


def gigabytes(size_bytes: float) -> str:
    """In units of 1e9 bytes, as bandwidths are."""
    return f"{size_bytes / 1e9:,.1f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:,.1f} MB"
