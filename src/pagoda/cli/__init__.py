"""The commands: `pagoda serve`, `pagoda chat`, `pagoda generate`, `pagoda bench`."""
