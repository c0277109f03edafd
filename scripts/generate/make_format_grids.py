#!/usr/bin/env python3
"""Writes engine/tensor/formats/grids.cpp: the grids of the IQ formats, as the gguf package holds
them (pip install gguf).

Usage: scripts/generate/make_format_grids.py > engine/tensor/formats/grids.cpp
"""

import gguf.quants
import numpy as np

# The name of the array, the package's class, and the bits of an element.
GRIDS = [("kIq2XxsGrid", "IQ2_XXS", 2), ("kIq2XsGrid", "IQ2_XS", 2), ("kIq2SGrid", "IQ2_S", 2),
         ("kIq3XxsGrid", "IQ3_XXS", 3), ("kIq3SGrid", "IQ3_S", 3), ("kIq1Grid", "IQ1_S", 2)]
PER_LINE = 10


def entries(name: str, bits: int) -> list[int]:
    kind = getattr(gguf.quants, name)
    kind.init_grid()
    places = {size: place for place, size in enumerate(kind.grid_map)}
    rows = kind.grid.reshape(kind.grid_shape).astype(np.int64)
    return [sum(places[int(size)] << (bits * at) for at, size in enumerate(row)) for row in rows]


def main() -> None:
    print("// Made by scripts/generate/make_format_grids.py.")
    print('#include "engine/tensor/formats/grids.h"\n\nnamespace lockstep {\n')
    print("// clang-format off")
    for array, name, bits in GRIDS:
        numbers = [f"0x{entry:04x}," for entry in entries(name, bits)]
        print(f"const uint16_t {array}[{len(numbers)}] = {{")
        for begin in range(0, len(numbers), PER_LINE):
            print("    " + " ".join(numbers[begin:begin + PER_LINE]))
        print("};")
    print("// clang-format on\n\n}  // namespace lockstep")


if __name__ == "__main__":
    main()
