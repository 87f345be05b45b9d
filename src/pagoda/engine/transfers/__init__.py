"""Blocks on their way between the cache and its tiers."""
