"""The HTTP server: OpenAI's API over the async engine."""
