"""Tokenizers that come as ranks and code, which is never run: Kimi-K2's."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from checkpoints import case_config, write_tokenizer
from latent_cases import LATENT_CASES
from pagoda.errors import ModelError
from pagoda.models.locate import ModelFiles
from pagoda.models.tokenizer import Tokenizer

KIMI = {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}
MERGED = ["th", "the", " the", "中文", "文E", "En", "混合", "12", "123"]
RANKS = [bytes([byte]) for byte in range(256)]
for word in MERGED:
    for end in range(2, len(word.encode()) + 1):
        if word.encode()[:end] not in RANKS:
            RANKS.append(word.encode()[:end])
EOS = len(RANKS) + 1


def write_ranks(directory: Path, auto_map: Any = KIMI) -> ModelFiles:
    """A model of Kimi-K2's kind, but for its weights: ranks, special tokens, a chat template."""
    config = case_config(LATENT_CASES["deepseek_v3"]).to_dict()
    config |= {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2"}
    (directory / "config.json").write_text(json.dumps(config))
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(RANKS)]
    (directory / "tiktoken.model").write_text("\n".join(lines))
    added = {EOS - 1: "[BOS]", EOS: "[EOS]", EOS + 3: "<|im_end|>"}
    own = {
        "tokenizer_class": "TikTokenTokenizer",
        "auto_map": auto_map,
        "added_tokens_decoder": {
            str(number): {"content": token, "special": True} for number, token in added.items()
        },
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "chat_template": "{% for m in messages %}{{ m['content'] }}<|im_end|>{% endfor %}",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(own))
    return ModelFiles("directory", directory, "kimi")


def test_text_is_cut_as_the_code_cuts_it(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write_ranks(tmp_path))
    assert tokenizer.eos_token_ids >= {EOS}
    for text, pieces in (
        ("中文English混合", ["中文", "En", "g", "l", "i", "s", "h", "混合"]),
        ("the the 1234", ["the", " the", " ", "123", "4"]),
        ("<|im_end|>the", ["<|im_end|>", "the"]),
    ):
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        assert [tokenizer.decode([each], skip_special_tokens=False) for each in token_ids] == pieces
        assert tokenizer.decode(token_ids, skip_special_tokens=False) == text
    [chat] = [tokenizer.chat([{"role": "user", "content": "the"}])]
    assert chat[-1] == EOS + 3


@pytest.mark.parametrize("auto_map", [None, {"AutoTokenizer": "tokenization_x.Tokenizer"}])
def test_ranks_alone_are_refused_where_nothing_known_says_how_text_is_cut(
    auto_map: Any, tmp_path: Path
) -> None:
    files = write_ranks(tmp_path, auto_map)
    with pytest.raises(ModelError, match="code of a model is never run") as refusal:
        Tokenizer(files)
    assert refusal.value.field == "tokenizer_config.json auto_map.AutoTokenizer"
    (tmp_path / "tokenizer_config.json").unlink()
    write_tokenizer(tmp_path)
    assert Tokenizer(files).encode("the") == [*b"the"]
