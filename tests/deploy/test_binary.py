"""The program as it was linked: what hardens it is read off the file, for every function and every
object of ours, and nothing in it tells of where or when it was built."""

import bisect
import json
import os
import pathlib
import re
import subprocess

import pytest

from conftest import ROOT, server

PROGRAM = pathlib.Path(server.PROGRAM).resolve()
BUILD = PROGRAM.parent
LANDING_PAD = bytes.fromhex("f30f1efa")  # endbr64
STACK_PROBE = bytes.fromhex("48830c2400")  # orq $0, (%rsp): a page of a large frame is touched
FLAGS = ("-fstack-protector-strong", "-fstack-clash-protection", "-fcf-protection=full",
         "-D_FORTIFY_SOURCE=3", "-D_GLIBCXX_ASSERTIONS")


def tool(*arguments):
    result = subprocess.run([str(word) for word in arguments], capture_output=True, text=True,
                            check=True, env={**os.environ, "TZ": "UTC", "LC_ALL": "C"})
    return result.stdout


class Binary:
    """An ELF file whose code lies at the same offset in the file and in memory."""

    def __init__(self, path):
        self.path = path
        self.bytes = path.read_bytes()
        self.sections = {name: (int(address, 16), int(size, 16), int(offset, 16))
                         for name, address, offset, size in re.findall(
                             r"\] (\.\S+) +\S+ +(\S+) (\S+) (\S+)",
                             tool("readelf", "-SW", path))}
        address, size, offset = self.sections[".text"]
        assert address == offset
        self.code = range(address, address + size)
        self.imported = set(re.findall(r" U (\S+?)(?:@\S*)?$", tool("nm", "-D", path), re.M))

    def functions(self):
        """(address, binding, mangled name) of all that are defined, in order of their address."""
        found = []
        for line in tool("readelf", "-sW", self.path).splitlines():
            fields = line.split()
            if len(fields) >= 8 and fields[3] == "FUNC" and fields[6] != "UND":
                found.append((int(fields[1], 16), fields[4], fields[7]))
        return sorted(found)

    def has_landing_pad(self, address):
        return self.bytes.startswith(LANDING_PAD, address)


@pytest.fixture(scope="module")
def binary():
    return Binary(PROGRAM)


@pytest.fixture(scope="module")
def segments(binary):
    """Flags, address and size of each, by type."""
    found = {}
    for kind, address, size, flags in re.findall(
            r"^  (\w+) +0x\S+ (0x\S+) 0x\S+ 0x\S+ (0x\S+) ([RWE ]{3})",
            tool("readelf", "-lW", binary.path), re.M):
        found.setdefault(kind, []).append((flags.replace(" ", ""), int(address, 16), int(size, 16)))
    return found


def test_it_lies_anywhere_in_memory_and_no_page_is_both_written_and_run(binary, segments):
    assert "DYN (Position-Independent Executable file)" in tool("readelf", "-hW", binary.path)
    assert [flags for flags, _, _ in segments["GNU_STACK"]] == ["RW"]
    assert len(segments["LOAD"]) > 2
    for flags, _, _ in segments["LOAD"]:
        assert not {"W", "E"} <= set(flags)
    assert "TEXTREL" not in tool("readelf", "-dW", binary.path)


def test_all_symbols_are_bound_at_start_and_read_only_from_then_on(binary, segments):
    dynamic = tool("readelf", "-dW", binary.path)
    assert re.search(r"\(FLAGS\) +.*BIND_NOW", dynamic)
    assert re.search(r"\(FLAGS_1\) +Flags: .*NOW.* PIE", dynamic)
    ((_, start, size),) = segments["GNU_RELRO"]
    for name in (".got", ".dynamic", ".data.rel.ro", ".init_array", ".fini_array"):
        address, length, _ = binary.sections[name]
        assert start <= address and address + length <= start + size, name
    assert ".got.plt" not in binary.sections  # what would be bound late


def test_libraries_are_looked_for_where_the_system_says(binary):
    assert not re.search(r"RPATH|RUNPATH", tool("readelf", "-dW", binary.path))


def test_stacks_buffers_and_containers_are_checked(binary):
    assert "__stack_chk_fail" in binary.imported
    assert {"__memcpy_chk", "__snprintf_chk"} <= binary.imported
    assert "_ZSt21__glibcxx_assert_failPKciS0_S0_" in binary.imported


def test_large_frames_touch_every_page(binary):
    assert binary.bytes[binary.code.start:binary.code.stop].count(STACK_PROBE) > 0


def test_every_function_of_ours_that_others_may_call_is_a_landing_pad(binary):
    ours = [(address, name) for address, binding, name in binary.functions()
            if binding in ("GLOBAL", "WEAK") and "8lockstep" in name]
    assert len(ours) > 1000
    assert [name for address, name in ours if not binary.has_landing_pad(address)] == []


def test_every_address_of_code_in_the_data_is_that_of_a_landing_pad(binary):
    """Virtual tables and tables of functions: what indirect calls take their targets from."""
    functions = binary.functions()
    addresses = [address for address, _, _ in functions]
    targets = {int(addend, 16) for addend in re.findall(
        r" R_X86_64_RELATIVE +([0-9a-f]+)$", tool("readelf", "-rW", binary.path), re.M)}
    targets = {target for target in targets if target in binary.code}
    assert len(targets) > 500
    # The compiler's own start files are not built with landing pads.
    starts = {"frame_dummy", "__do_global_dtors_aux", "_start"}
    bare = {functions[bisect.bisect_right(addresses, target) - 1][2] for target in targets
            if not binary.has_landing_pad(target)}
    assert bare - starts == set()


def archives():
    """Our own libraries beside the program, as far as they are linked into it."""
    return [path for folder in ("engine", "server") for path in (BUILD / folder).rglob("*.a")]


def test_every_object_of_ours_is_marked_for_landing_pads_and_shadow_stacks():
    assert len(archives()) > 10, f"{PROGRAM} does not lie where it was built"
    for archive in archives():
        members = tool("ar", "t", archive).split()
        marked = tool("readelf", "-nW", archive).count("x86 feature: IBT, SHSTK")
        assert marked == len(members), archive


def test_every_source_of_the_daemon_is_compiled_with_the_flags():
    """Of what leaves no trace of its own in a file: the third level of checked buffers, and probes
    in those functions that have small frames today."""
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    # Files that are compiled as one are named in a unit, which includes them.
    roots = "|".join(re.escape(str(root)) for root in (ROOT, BUILD))
    sources = re.compile(rf"({roots})/(engine|server)/.*\.c(pp|xx)$")
    ours = [entry for entry in commands if sources.match(entry["file"])]
    compiled = set()
    for entry in ours:
        text = pathlib.Path(entry["file"]).read_text() if "/Unity/" in entry["file"] else ""
        compiled.update(re.findall(r'#include "([^"]+\.cpp)"', text) or [entry["file"]])
    assert len(compiled) > 200
    for entry in ours:
        words = entry["command"].split()
        assert set(FLAGS) <= set(words), entry["file"]
        fortify = [word for word in words if "_FORTIFY_SOURCE" in word]
        assert fortify == ["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3"], entry["file"]


# Two builds of one commit are equal bit for bit: scripts/checks/check_reproducible. What would make
# them differ is looked for in the one that is there.

def test_it_does_not_tell_where_it_was_built(binary):
    for place in {str(ROOT), str(BUILD), str(ROOT.resolve()), str(pathlib.Path.home())}:
        if place != "/":
            assert binary.bytes.find(place.encode() + b"/") < 0, place


def test_it_does_not_tell_when_it_was_built(binary):
    sources = [path for folder in ("engine", "server") for path in (ROOT / folder).rglob("*")
               if path.suffix in (".h", ".cpp", ".cu", ".cuh")]
    assert len(sources) > 400
    for path in sources:
        assert not re.search(r"__(DATE|TIME|TIMESTAMP)__", path.read_text()), path
    # "Nov 23 2026", as __DATE__ writes it
    months = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
    assert not re.search(rf"(?:{months}) [ 1-3]\d 20\d\d\0".encode(), binary.bytes)


def test_archives_hold_no_times_and_no_users():
    for archive in archives():
        for line in tool("ar", "tvO", archive).splitlines():
            assert re.match(r"rw-r--r-- 0/0 +\d+ Jan +1 00:00 1970 ", line), (archive, line)
