"""The devices that an engine can run on, and what they have."""
