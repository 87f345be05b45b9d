"""Conversations by name: remembered, kept in tiers, and carried to other machines."""
