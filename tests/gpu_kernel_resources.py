#!/usr/bin/env python3
"""What the machine code of GPU kernels needs per thread: registers, and a frame of stack, in which
lies what found no register (spills) and arrays that are indexed by a variable. It is read off the
objects that nvcc wrote: the numbers that ptxas -v prints, without a second compile.

    gpu_kernel_resources.py FOLDER          the kernels in the objects below that folder
    gpu_kernel_resources.py --sums FOLDER   the same in a line per kernel, for all of its variants
"""

import pathlib
import re
import struct
import subprocess
import sys
from typing import NamedTuple


class Kernel(NamedTuple):
    file: str  # the object
    name: str
    architecture: int  # 90: sm_90
    registers: int
    frame_bytes: int

    @property
    def template(self):
        return self.name.partition("<")[0]


# Of a fat binary; no document of NVIDIA's describes it: read off what nvcc 13.0 writes (see also
# tests/emulators/gpu/cuda/fat_binary.cpp).
FAT_BINARY = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of the entries
FAT_BINARY_MAGIC = 0xBA55ED50
ENTRY = struct.Struct("<HHIQI8xI")  # kind, version, header's bytes, bytes, compressed, architecture
MACHINE_CODE = 2

# Attributes in the section .nv.info, each of a symbol.
SYMBOL_VALUE = 4  # the form: a size, and so many bytes
STACK_SIZE = 0x12  # of kernels: the frame, and those of functions that it calls
REGISTER_COUNT = 0x2F


def sections(elf):
    """The bytes of each section of an ELF file of 64 bits, by name. Those that repeat are joined."""
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", elf, table + index * size) for index in range(count)]
    found = {}
    for name_offset, kind, _, _, offset, length in heads:
        begin = heads[names_index][4] + name_offset
        name = elf[begin:elf.index(b"\0", begin)].decode()
        found[name] = found.get(name, b"") + (b"" if kind == 8 else elf[offset:offset + length])
    return found


def fat_binary_entries(section):
    """The machine codes in a section .nv_fatbin, each with its architecture."""
    place = 0
    while place + FAT_BINARY.size <= len(section):
        magic, _, header_bytes, entries_bytes = FAT_BINARY.unpack_from(section, place)
        if magic != FAT_BINARY_MAGIC:
            place += 8
            continue
        place += header_bytes
        end = place + entries_bytes
        while place < end:
            kind, _, header_bytes, length, compressed, architecture = ENTRY.unpack_from(section, place)
            code = section[place + header_bytes:place + header_bytes + length]
            place += header_bytes + length
            if kind == MACHINE_CODE:
                if compressed:
                    raise ValueError("machine code is compressed: give nvcc --no-compress")
                yield architecture, code


def symbol_values(information):
    """Pairs of an attribute and its two numbers."""
    place = 0
    while place + 4 <= len(information):
        form, attribute, length = struct.unpack_from("<BBH", information, place)
        place += 4
        if form != SYMBOL_VALUE:
            continue  # its value stands where the length would
        if length == 8:
            yield attribute, *struct.unpack_from("<II", information, place)
        place += length


def kernels_of(path):
    found = []
    for architecture, code in fat_binary_entries(sections(path.read_bytes()).get(".nv_fatbin", b"")):
        parts = sections(code)
        values = {}
        for attribute, symbol, value in symbol_values(parts.get(".nv.info", b"")):
            values.setdefault(symbol, {})[attribute] = value
        for symbol, numbers in values.items():
            if STACK_SIZE not in numbers:
                continue  # a function that kernels call; theirs has what it needs
            (offset,) = struct.unpack_from("<I", parts[".symtab"], 24 * symbol)
            strings = parts[".strtab"]
            name = strings[offset:strings.index(b"\0", offset)].decode()
            found.append(Kernel(path.name, name, architecture, numbers[REGISTER_COUNT],
                                numbers[STACK_SIZE]))
    return found


def readable(name):
    """A demangled name without its result, namespaces and parameters."""
    name = re.sub(r"^void |\(anonymous namespace\)::|lockstep::", "", name)
    return re.sub(r"(?<=[\w>])\([^<>]*\)$", "", name)


def kernels_below(folder):
    """All kernels in objects of .cu files below a folder, with readable names, by file and name."""
    found = [kernel for path in sorted(folder.rglob("*.cu.o")) for kernel in kernels_of(path)]
    said = subprocess.run(["c++filt"], input="".join(f"{kernel.name}\n" for kernel in found),
                          capture_output=True, text=True, check=True)
    names = [readable(line) for line in said.stdout.splitlines()]
    return sorted(kernel._replace(name=name) for kernel, name in zip(found, names, strict=True))


def print_sums(kernels):
    groups = {}
    for kernel in kernels:
        groups.setdefault((kernel.architecture, kernel.template), []).append(kernel)
    for (architecture, name), variants in sorted(groups.items()):
        registers = [kernel.registers for kernel in variants]
        frames = [kernel.frame_bytes for kernel in variants if kernel.frame_bytes]
        print(f"sm_{architecture}: {name}: variants {len(variants)}, registers {min(registers)} to "
              f"{max(registers)}, with a stack frame {len(frames)}, bytes of it {max(frames, default=0)}")


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--sums"]
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.exit(__doc__)
    kernels = kernels_below(pathlib.Path(arguments[0]))
    if "--sums" in sys.argv:
        print_sums(kernels)
        return
    print("registers  frame bytes  kernel")
    for kernel in kernels:
        print(f"{kernel.registers:9}  {kernel.frame_bytes:11}  {kernel.file}, "
              f"sm_{kernel.architecture}: {kernel.name}")


if __name__ == "__main__":
    main()
