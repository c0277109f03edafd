#!/usr/bin/env python3
"""Writes engine/text/jinja/unicode_table.cpp: what chat templates may ask of a character, as the
running Python's own str answers it (its Unicode version is written into the file).

Usage: scripts/generate/make_unicode_table.py > engine/text/jinja/unicode_table.cpp
"""

import sys
import unicodedata

LAST = 0x110000
PROPERTIES = {
    "kAlphabetic": str.isalpha,
    "kDecimal": str.isdecimal,
    "kDigit": str.isdigit,
    "kNumeric": str.isnumeric,
    "kPrintable": str.isprintable,
    "kLower": str.islower,
    "kUpper": str.isupper,
}


def characters():
    return (c for c in range(LAST) if not 0xD800 <= c <= 0xDFFF)


def strided(codes):
    """Cuts ascending numbers into (first, last, step) with a step of 1 or 2."""
    ranges = []
    for code in codes:
        if ranges:
            first, last, step = ranges[-1]
            distance = code - last
            if distance == step or (first == last and distance == 2):
                ranges[-1] = (first, code, distance)
                continue
            if step == 2 and distance == 1:
                # The last of an every-other range belongs to the run that starts here.
                ranges[-1] = (first, last - 2, 2 if last - 2 > first else 1)
                ranges.append((last, code, 1))
                continue
        ranges.append((code, code, 1))
    return ranges


def mapped(convert, base=None):
    """Cuts a case mapping into (first, last, step, delta); longer results are listed apart."""
    single, several = {}, []
    for code in characters():
        result = convert(chr(code))
        if base is not None and result == base(chr(code)):
            continue
        if base is None and result == chr(code):
            continue
        if len(result) == 1:
            single.setdefault(ord(result) - code, []).append(code)
        else:
            several.append((code, result))
    ranges = [(first, last, step, delta) for delta, codes in single.items()
              for first, last, step in strided(codes)]
    return sorted(ranges), several


def emit(lines_of, out):
    line = "   "
    for item in lines_of:
        if len(line) + len(item) + 1 > 99:
            out.append(line)
            line = "   "
        line += " " + item
    if line.strip():
        out.append(line)


def string_literal(text):
    return '"' + "".join("\\x%02x" % byte for byte in text.encode()) + '"'


def main():
    out = [
        "// Made by scripts/generate/make_unicode_table.py; edit that. Unicode %s."
        % unicodedata.unidata_version,
        '#include "engine/text/jinja/unicode_table.h"',
        "",
        "namespace lockstep::jinja {",
        "",
        "namespace {",
        "",
        "// clang-format off",
    ]
    for name, holds in PROPERTIES.items():
        ranges = strided(c for c in characters() if holds(chr(c)))
        out.append("constexpr CharacterRange %s[] = {" % name)
        emit(("{0x%x,0x%x,%d}," % entry for entry in ranges), out)
        out.append("};")
    title = lambda c: c.title()
    tables = {"kToUpper": mapped(str.upper), "kToLower": mapped(str.lower),
              "kToTitle": mapped(title, str.upper)}
    for name, (ranges, several) in tables.items():
        out.append("constexpr CaseRange %s[] = {" % name)
        emit(("{0x%x,0x%x,%d,%d}," % entry for entry in ranges), out)
        out.append("};")
        out.append("constexpr LongCase %sLong[] = {" % name)
        emit(("{0x%x,%s}," % (code, string_literal(text)) for code, text in several), out)
        out.append("};")
    out += ["// clang-format on", "", "}  // namespace", ""]
    out.append("const CharacterTables& character_tables() {")
    out.append("  static constexpr CharacterTables kTables = {")
    fields = [name[1:].lower() for name in PROPERTIES]
    out += ["      .%s = %s," % (field, name) for field, name in zip(fields, PROPERTIES)]
    for name, field in (("kToUpper", "to_upper"), ("kToLower", "to_lower"),
                        ("kToTitle", "to_title")):
        out.append("      .%s = {%s, %sLong}," % (field, name, name))
    out += ["  };", "  return kTables;", "}", "", "}  // namespace lockstep::jinja"]
    sys.stdout.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
