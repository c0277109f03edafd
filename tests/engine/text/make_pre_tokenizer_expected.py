#!/usr/bin/env python3
"""Writes pre_tokenizer_expected.json: how Hugging Face's tokenizers library cuts texts into words.

Needs the package `tokenizers` (run with 0.23.3). Words are given by their lengths in UTF-8 bytes;
those of "whitespace", which leaves some of the text out, as they are.
"""

import json
import pathlib
import random

from tokenizers import Regex, pre_tokenizers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
BIG = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
BEFORE = r"[^\r\n\p{L}\p{N}]?"


def modern(digits):
    return f"{CONTRACTION}|{WORD}|{digits}|{SYMBOLS}|{SPACE}"


def cased(big, small, suffix, digits, breaks="/"):
    return (
        rf"{BEFORE}{big}*{small}+{suffix}|{BEFORE}{big}+{small}*{suffix}|{digits}|"
        rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n{breaks}]*|{SPACE}"
    )


DEEP_SEEK_WORD = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
)
DEEP_SEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-"
    "ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-"
    "ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
HAN_KANA = "[一-龥\u3040-ゟ゠-ヿ]+"
DEEP_SEEK_CJK = "[一-龥\u0800-一가-\ud7ff]+"
GPT4O = cased(BIG, SMALL, f"(?:{CONTRACTION})?", r"\p{N}{1,3}")
BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"
ASIAN = (
    "[一-鿿㐀-䶿\uf900-\ufaff\u3040-ゟ゠-ヿ\uff65-ﾟ⼀-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff"
    "\u1000-႟\uaa60-ꩿ\ua9e0-\ua9ff가-\ud7af\u1100-ᇿ]+"
)
YOUTU_SCRIPTS = (
    "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+"
)


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def sequence(*patterns):
    return pre_tokenizers.Sequence([split(pattern) for pattern in patterns])


# By the name of one row of a kind; pre_tokenizer_test.cpp has the names that share it. The patterns
# are those of the models' own tokenizer.json.
PRE_TOKENIZERS = {
    "gpt-2": split(GPT2),
    "llama-bpe": split(modern(r"\p{N}{1,3}")),
    "qwen2": split(modern(r"\p{N}")),
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
    "falcon": sequence(r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"),
    "minicpm5": sequence(r"\p{N}{1,3}", modern(r"\p{N}+")),
    "gemma4": split(r"[^\n]+|[\n]+"),
    "laguna": sequence(r"[^\n]+|[\n]+", modern(r"\p{N}")),
    "ufakzeka": split(rf"{WORD}|\p{{N}}|{SYMBOLS}|{SPACE}"),
    "qwen35": split(
        rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
        rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACE}"
    ),
    "jais-2": split(
        rf"{CONTRACTION}|{WORD}|\p{{N}}{{1,3}}|{SYMBOLS}|\s*[\r\n]+|"
        + "".join(rf"\s{{{2 ** power}}}(?!\S)|" for power in range(9, 1, -1))
        + r"\s{1,2}(?!\S)|\s{1}"
    ),
    "seed-coder": split(
        rf"{CONTRACTION}|{WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACE}"
    ),
    "bailingmoe": split(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
        r"\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "exaone-moe": split(
        rf"{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "tekken": split(cased(BIG, SMALL, "", r"\p{N}")),
    "gpt-4o": split(GPT4O),
    "tiny_aya": sequence(r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O),
    "kimi-k2": split(
        r"[\p{Han}]+|"
        + cased(
            r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
            r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]",
            f"(?:{CONTRACTION})?",
            r"\p{N}{1,3}",
            "",
        )
    ),
    "youtu": sequence(YOUTU_SCRIPTS, cased(BIG, SMALL, f"(?:{CONTRACTION})?", r"\p{N}")),
    "deepseek-v3": sequence(
        r"\p{N}{1,3}", HAN_KANA, rf"{DEEP_SEEK_WORD}[\r\n]*|{SPACE}"
    ),
    "spark2_5": sequence(
        r"\p{N}{1,3}", HAN_KANA, rf"{DEEP_SEEK_WORD}|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"
    ),
    "deepseek-llm": sequence(
        "[\r\n]",
        rf"\s?[{DEEP_SEEK_LETTERS}]+",
        r"\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
        r"\s+$",
        DEEP_SEEK_CJK,
        r"\p{N}+",
    ),
    "deepseek-coder": sequence("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEP_SEEK_CJK, r"\p{N}"),
    "afmoe": sequence(
        r"\d+", r"(?=(\d{3})+(?!\d))", ASIAN, rf"{DEEP_SEEK_WORD}[\r\n]*|{SPACE}"
    ),
    "poro-chat": split(BLOOM),
    "superbpe": sequence(r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "viking": sequence(BLOOM, r"\p{N}"),
    "chameleon": sequence(
        r"<sentinel:[0-9]+>",
        r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
        r"([\t\n]|    |  )",
        r"\p{N}",
        r"[\p{P}!-/:-@\[-`{-~]",
        GPT2,
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
    + ["AbcDEF", "ABC", "éÉ", "İı", "ー", "カナ", "ㄅㄆ", "ကခ", "   ", "    ", "a b c", "a/b//\n"]
    + ["12345678", "123abc", "<sentinel:12>", "IMGIMGABZ", "、", "：", "「」", "፩", "ₐ", "ª"]
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
        letters = [piece for piece, _ in pre_tokenizers.Whitespace().pre_tokenize_str(text)]
        cases.append({"text": text, "words": words, "whitespace": letters})
    path = pathlib.Path(__file__).with_name("pre_tokenizer_expected.json")
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    path.write_text(f"[\n{lines}\n]\n")


main()
