#!/usr/bin/env python3
"""Writes pre_tokenizer_expected.json: how Hugging Face's tokenizers library cuts texts into words.

Needs the package `tokenizers` (run with 0.23.3). Words are given by their lengths in UTF-8 bytes.
"""

import json
import pathlib
import random

from tokenizers import Regex, pre_tokenizers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
MODERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


PRE_TOKENIZERS = {
    "gpt-2": split(GPT2),
    "llama-bpe": split(MODERN % r"\p{N}{1,3}"),
    "qwen2": split(MODERN % r"\p{N}"),
    # As in SmolLM's tokenizer.json, but for the mapping of bytes to letters.
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), split(GPT2)]),
    "default": pre_tokenizers.Sequence(
        [
            split(r"[\p{P}\$\+<=>\^~\|]+"),
            split(GPT2),
            pre_tokenizers.Digits(individual_digits=False),
            split(r"[0-9][0-9][0-9]"),
        ]
    ),
}

PARTS = (
    [" "] * 6
    + ["  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r", "\v", "\f", "\u0085", "\u00a0", "\u180e"]
    + ["\u2003", "\u2028", "\u200b", "\u200d", "\u3000", "\ufeff"]
    + ["a", "B", "hello", "World", "naïve", "ﬁ", "ǅ", "ß", "Жук", "中文", "한국어", "ไทย", "हिन्दी"]
    + ["'s", "'S", "'t", "'re", "'Ve", "'LL", "'d", "'", "''", "don't", "I'M", "x's1"]
    + ["0", "12", "345", "6789", "1234567", "٣٤", "½", "Ⅻ", "①", "3.14", "1,000"]
    + [".", ",", "!", "?!", "...", "-", "_", "$", "+", "<=>", "^", "~", "|", "`", "©", "€", "\\n"]
    + ["😀", "👩‍👧", "🇩🇪", "e\u0301", "\u0301", "\u0903", "<|im_end|>", "\0", "\x7f"]
)


def main():
    source = random.Random(20240817)
    texts = ["".join(source.choices(PARTS, k=source.randint(1, 25))) for _ in range(120)]
    cases = []
    for text in texts:
        words = {}
        for name, pre_tokenizer in PRE_TOKENIZERS.items():
            pieces = [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)]
            assert "".join(pieces) == text, (name, text, pieces)
            words[name] = [len(piece.encode()) for piece in pieces]
        cases.append({"text": text, "words": words})
    path = pathlib.Path(__file__).with_name("pre_tokenizer_expected.json")
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    path.write_text(f"[\n{lines}\n]\n")


main()
