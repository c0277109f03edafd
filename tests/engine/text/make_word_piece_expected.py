#!/usr/bin/env python3
"""Writes word_piece_expected.json: what BERT's normalizer and pre-tokenizer of Hugging Face's
tokenizers make of every character, and of texts.

Needs the package `tokenizers` (run with 0.23.3). Of characters only a hash of each block's words is
kept: FNV-1a over the words, each with a zero behind it.
"""

import json
import pathlib
import random
import unicodedata

from tokenizers import normalizers, pre_tokenizers

BLOCK = 0x1000
RULES = [(True, True), (False, False), (True, False), (False, True)]


def words_of(lowercase, strip_accents):
    normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lowercase)
    cut = pre_tokenizers.BertPreTokenizer()
    return lambda text: [word for word, _ in cut.pre_tokenize_str(normalizer.normalize_str(text))]


def hashes(words):
    for block in range(0, 0x110000, BLOCK):
        value = 0xCBF29CE484222325
        for code in range(block, block + BLOCK):
            if 0xD800 <= code < 0xE000:
                continue
            for word in words("aB" + chr(code) + "Cd"):
                for byte in word.encode() + b"\0":
                    value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
        yield str(value)


def texts():
    """Characters of every category beside each other; then marks, which are put in order."""
    chance = random.Random(20261126)
    kinds = {}
    for code in range(0x110000):
        if not 0xD800 <= code < 0xE000:
            kinds.setdefault(unicodedata.category(chr(code)), []).append(chr(code))
    marks = [char for kind in ("Mn", "Mc", "Me") for char in kinds[kind]]
    odd = [char for char in marks if unicodedata.combining(char)]
    for _ in range(150):
        yield "".join(chance.choice(kinds[chance.choice(list(kinds))]) for _ in range(12))
    for _ in range(150):
        yield "".join(chance.choice(chance.choice([odd, odd, marks, kinds["Lo"], kinds["Lu"]]))
                      for _ in range(10))


def main():
    characters = [{"lowercase": lowercase, "strip_accents": strip,
                   "hashes": list(hashes(words_of(lowercase, strip)))} for lowercase, strip in RULES]
    cut = []
    for index, text in enumerate(texts()):
        lowercase, strip = RULES[index % len(RULES)]
        cut.append({"text": text, "lowercase": lowercase, "strip_accents": strip,
                    "words": words_of(lowercase, strip)(text)})
    lines = lambda entries: ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in entries)
    pathlib.Path(__file__).with_name("word_piece_expected.json").write_text(
        '{"characters":[\n%s\n],"texts":[\n%s\n]}\n' % (lines(characters), lines(cut)))


if __name__ == "__main__":
    main()
