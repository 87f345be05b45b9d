"""One file for each family: a config becomes a `DecoderSpec`.

The function of a family, (config, max_model_len) → DecoderSpec, is put together out of `parts`,
`experts`, `routed_experts` and `latent_parts`; its docstring says in what it differs. A field that
is missing takes the default that transformers gives it. The planner reads these families by the
same functions. CONTRIBUTING tells how to add one.
"""
