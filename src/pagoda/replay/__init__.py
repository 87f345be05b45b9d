"""Traces of what a server was asked, through the real cache and scheduler."""
