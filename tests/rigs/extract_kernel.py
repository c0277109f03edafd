"""extract_kernel.py VMLINUZ VMLINUX: takes the kernel itself out of Debian's compressed image, which
an emulated processor would take long to unpack. The header is that of Linux' x86 boot protocol
(Documentation/arch/x86/boot.rst)."""

import struct
import subprocess
import sys

UNPACKERS = {b"\x02\x21\x4c\x18": ["lz4", "-dc"], b"\xfd7zX": ["xz", "-dc"],
             b"\x28\xb5\x2f\xfd": ["zstd", "-dc"]}
SECTOR_BYTES = 512


def main():
    source, target = sys.argv[1:]
    with open(source, "rb") as file:
        image = file.read()
    sectors = image[0x1f1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)  # payload_offset, payload_length
    begin = (sectors + 1) * SECTOR_BYTES + offset
    payload = image[begin:begin + length]
    unpacker = UNPACKERS.get(payload[:4])
    if unpacker is None:
        sys.exit(f"{source}: the kernel is packed in an unknown way ({payload[:6].hex()})")
    # The payload's length covers four bytes more than the stream: unpackers may complain of them.
    kernel = subprocess.run(unpacker, input=payload, capture_output=True, check=False).stdout
    if kernel[:4] != b"\x7fELF":
        sys.exit(f"{source}: what {unpacker[0]} unpacks is no ELF file")
    with open(target, "wb") as file:
        file.write(kernel)


if __name__ == "__main__":
    main()
