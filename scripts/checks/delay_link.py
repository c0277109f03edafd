#!/usr/bin/env python3
"""Carries frames between two network interfaces, those that come from the first after a while.

    scripts/checks/delay_link.py FIRST SECOND MILLISECONDS

For kernels without netem. What sends there must have no offloads (without_offloads), so that frames
have their checksums and are no longer than the link's. Prints a line when it begins. Needs root;
runs until it is killed."""

import collections
import ctypes
import fcntl
import select
import socket
import struct
import sys
import time

EVERY_PROTOCOL = 0x0003  # linux/if_ether.h
SOL_PACKET, IGNORE_OUTGOING = 263, 23  # linux/if_packet.h
FRAME_BYTES = 65536
SIOCETHTOOL = 0x8946
SETTERS = {"transmitted checksums": 0x17, "TCP segments": 0x1f, "segments": 0x24}  # linux/ethtool.h


def without_offloads(interface):
    """The kernel completes each frame that this interface sends, before it is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for command in SETTERS.values():
            value = ctypes.create_string_buffer(struct.pack("II", command, 0))
            fcntl.ioctl(any_socket, SIOCETHTOOL,
                        struct.pack("16sP", interface.encode(), ctypes.addressof(value)))


def opened(interface):
    one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)  # hears nothing until it is bound
    one.setsockopt(SOL_PACKET, IGNORE_OUTGOING, 1)
    one.bind((interface, EVERY_PROTOCOL))
    return one


def carry(first, second, delay):
    waiting = collections.deque()  # (when it is due, a frame)
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        readable, _, _ = select.select([first, second], [], [], pause)
        if first in readable:
            waiting.append((time.monotonic() + delay, first.recv(FRAME_BYTES)))
        if second in readable:
            first.send(second.recv(FRAME_BYTES))
        while waiting and waiting[0][0] <= time.monotonic():
            second.send(waiting.popleft()[1])


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    first, second = opened(sys.argv[1]), opened(sys.argv[2])
    print("carries", flush=True)
    carry(first, second, float(sys.argv[3]) / 1000)


if __name__ == "__main__":
    main()
