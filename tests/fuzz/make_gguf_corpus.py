#!/usr/bin/env python3
"""Writes small valid GGUF files into a folder, for gguf_fuzzer to start from.

    make_gguf_corpus.py FOLDER

Needs only Python's standard library.
"""

import pathlib
import struct
import sys

# Value types: number -> struct format, sample.
SCALARS = {0: ("B", 200), 1: ("b", -100), 2: ("H", 60000), 3: ("h", -30000), 4: ("I", 4 << 28),
           5: ("i", -5), 6: ("f", 0.5), 7: ("B", 1), 10: ("Q", 1 << 63), 11: ("q", -1 << 62),
           12: ("d", 0.1)}
STRING, ARRAY = 8, 9
# ggml type -> elements of a block, bytes of a block.
FORMATS = {0: (1, 4), 1: (1, 2), 30: (1, 2), 8: (32, 34), 2: (32, 18), 3: (32, 20), 6: (32, 22),
           7: (32, 24), 12: (256, 144), 13: (256, 176), 14: (256, 210)}


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def entry(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, elements: list[bytes]) -> bytes:
    return struct.pack("<IQ", kind, len(elements)) + b"".join(elements)


def all_values() -> list[bytes]:
    entries = [entry(b"text", STRING, text(b"some text")),
               entry(b"texts", ARRAY, array(STRING, [text(b""), text(b"ab"), text(b"\xff")])),
               entry(b"none", ARRAY, array(STRING, []))]
    for kind, (code, sample) in SCALARS.items():
        value = struct.pack("<" + code, sample)
        entries.append(entry(b"one%d" % kind, kind, value))
        entries.append(entry(b"many%d" % kind, ARRAY, array(kind, [value] * 9)))
    return entries


def file(entries: list[bytes], tensors: list[tuple], version=3, alignment=32) -> bytes:
    """tensors: (name, ggml type, dimensions)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries)) + b"".join(entries)
    offset = 0
    for name, kind, dimensions in tensors:
        elements, size = FORMATS[kind]
        for dimension in dimensions:
            size *= dimension
        head += text(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions,
                                         kind, offset)
        offset += -(-size // elements // alignment) * alignment
    return head + bytes(-len(head) % alignment) + bytes(offset)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    matrices = [(b"m%d" % kind, kind, (256, 2)) for kind in FORMATS]
    alignment = entry(b"general.alignment", 4, struct.pack("<I", 8))
    files = {"empty": file([], []), "values": file(all_values(), []),
             "version2": file(all_values()[:3], [(b"a", 0, (3,))], version=2),
             "formats": file([], matrices),
             "aligned": file([alignment], [(b"a", 0, (3, 1, 2)), (b"b", 1, (1, 1, 1, 5))],
                             alignment=8),
             "whole": file([entry(b"general.architecture", STRING, text(b"llama")), *all_values()],
                           matrices[:4])}
    for name, content in files.items():
        (folder / f"{name}.gguf").write_bytes(content)


if __name__ == "__main__":
    main()
