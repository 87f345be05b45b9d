"""One file for each family: a config becomes a `DecoderSpec`.

To add a family whose layers are those of `pagoda.models.decoder`: write `families/<name>.py` with
one function (config, max_model_len) → DecoderSpec out of `parts`, where the docstring says in what
it differs; add its row to `ARCHITECTURES` in `registry`, and to `GGUF_ARCHITECTURES` in
`gguf_config` where such files exist; add its cases to `tests/checkpoints.py`.
"""
