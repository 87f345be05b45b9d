"""GBNF, the grammars of llama.cpp: read, and written in the notation of Lark for llguidance."""
