"""One file for each family: a config becomes a `DecoderSpec`."""
