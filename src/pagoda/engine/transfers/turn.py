"""How much is moved between two steps, which wait for it."""

TURN_BYTES = 32 * 2**20
"""Brought into the cache in one turn, at most, but for a single row; as much is copied out."""
