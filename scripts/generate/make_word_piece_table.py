#!/usr/bin/env python3
"""Writes engine/text/word_piece_table.cpp: what WordPiece vocabularies do with each character, as
the normalizer and the pre-tokenizer of BERT in Hugging Face's tokenizers answer it.

Usage: scripts/generate/make_word_piece_table.py > engine/text/word_piece_table.cpp
Needs the package `tokenizers` (run with 0.23.3).
"""

import sys
import unicodedata

import tokenizers
from make_unicode_table import characters, emit, strided, string_literal
from tokenizers import normalizers, pre_tokenizers

HANGUL = range(0xAC00, 0xD7A4)  # decomposed by a formula
LONG_LOWER = {0x130: "i\u0307"}  # the only character whose lower case is two; WordPiece knows it
HIGHEST = "\u0345"  # the only character of the highest combining class
NFD = normalizers.NFD()


def bert(**wanted):
    steps = dict.fromkeys(("clean_text", "handle_chinese_chars", "strip_accents", "lowercase"), False)
    return normalizers.BertNormalizer(**{**steps, **wanted}).normalize_str


def ranges(name, holds, out):
    out.append("constexpr CodePointRange %s[] = {" % name)
    emit(("{0x%x,0x%x,%d}," % entry for entry in strided(c for c in characters() if holds(chr(c)))),
         out)
    out.append("};")


def lower_ranges(out):
    lower = bert(lowercase=True)
    deltas = {}
    for code in characters():
        text = lower(chr(code))
        if len(text) != 1:
            assert LONG_LOWER[code] == text
        elif text != chr(code):
            deltas.setdefault(ord(text) - code, []).append(code)
    found = sorted((first, last, step, delta) for delta, codes in deltas.items()
                   for first, last, step in strided(codes))
    out.append("constexpr CaseRange kLower[] = {")
    emit(("{0x%x,0x%x,%d,%d}," % entry for entry in found), out)
    out.append("};")


def decompositions(out):
    out.append("constexpr Decomposition kDecompositions[] = {")
    pairs = ((code, NFD.normalize_str(chr(code))) for code in characters() if code not in HANGUL)
    emit(("{0x%x,%s}," % (code, string_literal(text)) for code, text in pairs
          if text != chr(code)), out)
    out.append("};")


def combining_classes():
    """Combining classes other than 0, seen by what NFD reorders."""
    moves = lambda first, second: NFD.normalize_str(first + second) != first + second
    known = [code for code in characters() if NFD.normalize_str(chr(code)) == chr(code)
             and (chr(code) == HIGHEST or moves(HIGHEST, chr(code)))]
    # A character that is newer than the package is a starter to it.
    representatives = {unicodedata.combining(chr(code)): chr(code) for code in reversed(known)}
    classes = sorted(representatives)
    for code in known:
        char = chr(code)
        # Those of lesser classes are moved before it.
        yield code, min(value for value in classes if not moves(char, representatives[value]))


def combining(out):
    found = []
    for code, value in combining_classes():
        if found and found[-1][1] == code - 1 and found[-1][2] == value:
            found[-1] = (found[-1][0], code, value)
        else:
            found.append((code, code, value))
    out.append("constexpr CombiningRange kCombining[] = {")
    emit(("{0x%x,0x%x,%d}," % entry for entry in found), out)
    out.append("};")


def main():
    clean, spaced, bare = bert(clean_text=True), bert(handle_chinese_chars=True), bert(strip_accents=True)
    cut = lambda char: [text for text, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(
        "a" + char + "a")]
    out = [
        "// Made by scripts/generate/make_word_piece_table.py; edit that. tokenizers %s."
        % tokenizers.__version__,
        '#include "engine/text/word_piece_table.h"',
        "",
        "namespace lockstep {",
        "",
        "namespace {",
        "",
        "// clang-format off",
    ]
    ranges("kRemoved", lambda char: clean(char) == "", out)
    ranges("kSpace", lambda char: clean(char) == " ", out)
    ranges("kIdeographs", lambda char: spaced(char) != char, out)
    ranges("kPunctuation", lambda char: cut(char) == ["a", char, "a"], out)
    ranges("kAccents", lambda char: bare(char) == "" and NFD.normalize_str(char) == char, out)
    lower_ranges(out)
    combining(out)
    decompositions(out)
    out += ["// clang-format on", "", "}  // namespace", ""]
    out.append("const WordPieceTables& word_piece_tables() {")
    out.append("  static constexpr WordPieceTables kTables = {")
    for field, name in (("removed", "kRemoved"), ("space", "kSpace"), ("ideographs", "kIdeographs"),
                        ("punctuation", "kPunctuation"), ("accents", "kAccents"),
                        ("lower", "kLower"), ("combining", "kCombining"),
                        ("decompositions", "kDecompositions")):
        out.append("      .%s = %s," % (field, name))
    out += ["  };", "  return kTables;", "}", "", "}  // namespace lockstep"]
    sys.stdout.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
