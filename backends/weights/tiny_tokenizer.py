"""A tokenizer of single bytes for tiny models, in the layout of Hugging Face's `tokenizers`, so that they take text."""

from __future__ import annotations

import json
from pathlib import Path

_SPECIAL = ("<pad>", "<s>", "</s>")
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def _alphabet() -> list[str]:
    """The visible character that stands for each byte in GPT-2's byte-level encoding (Radford et al. 2019)."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in visible else chr(next(hidden)) for byte in range(256)]


def write_byte_tokenizer(folder: Path, size: int) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`: three special tokens, 256 bytes, and unused words up to `size`."""
    words = [*_SPECIAL, *_alphabet()]
    words += [f"<unused{number}>" for number in range(size - len(words))]
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = [{"id": index, "content": word, **plain, "special": True} for index, word in enumerate(_SPECIAL)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {word: index for index, word in enumerate(words)}, "merges": [],
        },
    }  # fmt: skip
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>",
        "chat_template": TEMPLATE, "clean_up_tokenization_spaces": False,
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
