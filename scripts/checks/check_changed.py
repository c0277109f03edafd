#!/usr/bin/env python3
"""Runs clang-tidy (.clang-tidy) on the C++ files of engine/ and server/ that have changed, each by
itself: nothing is said of a file that has not. Changed is what differs from where the branch left
origin/main; on that branch itself, what the last five commits and the working tree change.

    scripts/checks/check_changed.py                 at most eight files, the newest first
    scripts/checks/check_changed.py --most 100      more of them; a file takes about ten seconds
    scripts/checks/check_changed.py --base REF      what differs from there
    scripts/checks/check_changed.py FILE...         these

Flags are those of build/release, which is configured but need not be built. Ends with 1 where
something is found, and with 77 where clang-tidy or git's history is missing.

A file in which nothing was found is not read again while all that decides that is the same: its text
and that of every header it includes, flags, .clang-tidy, both programs. Such files are remembered in
$XDG_CACHE_HOME/lockstep/clang-tidy (~/.cache), by digests, for all clones.
"""

import argparse
import concurrent.futures
import contextlib
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = "clang-tidy-19"
COMPILER = "clang++-19"  # lists what a file includes
MAIN = "origin/main"
LAST_COMMITS = 5
SKIPPED = 77  # as ctest takes it


def git(*arguments):
    """What git says, or None where it fails."""
    said = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return said.stdout.strip() if said.returncode == 0 else None


def default_base():
    """None where there is no history."""
    head, base = git("rev-parse", "HEAD"), git("merge-base", "HEAD", MAIN)
    if base is not None and base != head:
        return base
    commits = git("rev-list", "--first-parent", f"--max-count={LAST_COMMITS + 1}", "HEAD")
    return commits.splitlines()[-1] if commits else None


def changed_files(base):
    """Paths in the tree, what was changed last first; None where git does not know the base."""
    now = git("diff", "--name-only", "HEAD")
    before = git("log", "--name-only", "--format=", f"{base}..HEAD")
    if now is None or before is None:
        return None
    return list(dict.fromkeys(line for line in f"{now}\n{before}".splitlines() if line))


def is_checked(name):
    """Whether this is code that a compiler for the host reads by itself, and is still there."""
    path = pathlib.PurePath(name)
    return (path.parts[0] in {"engine", "server"} and path.suffix in {".h", ".cpp"}
            and not name.endswith(".inl.h") and "cuda" not in path.parts
            and not re.match(r"engine/kernels/cpu/.*\.h$", name)  # parts of the rows' files
            and (ROOT / name).exists()
            and not re.search(r'^#include (?:<(?:cuda|cublas|nccl)|".*/nccl_library\.h")',
                              (ROOT / name).read_text(), re.MULTILINE))


def relevant_flags(command):
    """Those of a compiler's command that clang needs to read the file: no warnings, no outputs."""
    words = iter(shlex.split(command))
    kept = []
    for word in words:
        if word in {"-I", "-isystem"}:
            kept += [word, next(words)]
        elif re.match(r"-(I|isystem|D|m|std=)", word) and "FORTIFY" not in word:
            kept.append(word)
    return kept


def flags_of(name, commands):
    """A file's own; else those of the file that lies nearest to it: headers have no others."""

    def nearness(other):
        return (other == name, len(os.path.commonpath([other, name])),
                pathlib.PurePath(other).stem == pathlib.PurePath(name).stem)

    return commands[max(sorted(commands), key=nearness)]


def compiled_files(path):
    """The files that one which is compiled stands for: itself, or those that CMake joined in it."""
    if path.parent.name != "Unity":
        return [path]
    return [pathlib.Path(file)
            for file in re.findall(r'^#include "(.*)"', path.read_text(), re.MULTILINE)]


def read_commands(path):
    """A folder and flags by path in the tree."""
    return {str(file.relative_to(ROOT)): (entry["directory"], relevant_flags(entry["command"]))
            for entry in json.loads(path.read_text())
            for file in compiled_files(pathlib.Path(entry["file"]))
            if file.is_relative_to(ROOT)}


def included_files(name, folder, flags):
    """Paths of all that is read with the file, itself first; None where the compiler does not say."""
    if shutil.which(COMPILER) is None:
        return None
    said = subprocess.run([COMPILER, "-M", "-xc++", *flags, str(ROOT / name)], cwd=folder,
                          capture_output=True, text=True)
    if said.returncode != 0:
        return None
    rule = said.stdout.replace("\\\n", " ").partition(": ")[2]
    return [pathlib.Path(folder, path) for path in shlex.split(rule)]


def digest(name, folder, flags):
    """Names all that decides what is found; None where that is not known."""
    included = included_files(name, folder, flags)
    if included is None:
        return None
    version = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True).stdout
    decides = hashlib.sha256(repr((version, name)).encode())

    def add(path, text):
        # A clone in another folder has the same.
        decides.update(repr((path.replace(str(ROOT), ""), len(text))).encode() + text)

    add("flags", " ".join(flags).replace(str(ROOT), "").encode())
    for path in [ROOT / ".clang-tidy", pathlib.Path(__file__), *included]:
        add(os.path.normpath(path), path.read_bytes())
    return decides.hexdigest()


def remembered(key):
    """The file that is there where nothing was found."""
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache, "lockstep/clang-tidy", key)


def check(name, commands):
    """Whether nothing is found, and what was said."""
    folder, flags = flags_of(name, commands)
    key = digest(name, folder, flags)
    if key and remembered(key).exists():
        return True, ""
    is_good, said = run_program(name, folder, flags)
    # An equal key says that the program has read the text that the key was made of.
    if key and is_good and not said and key == digest(name, folder, flags):
        with contextlib.suppress(OSError):  # without such a folder it is read each time
            remembered(key).parent.mkdir(parents=True, exist_ok=True)
            remembered(key).touch()
    return is_good, said


def run_program(name, folder, flags):
    said = subprocess.run(
        [PROGRAM, "--quiet", str(ROOT / name), "--", "-xc++", *flags], cwd=folder,
        capture_output=True, text=True)
    # Besides findings it counts, on the other stream, what it did not say.
    return said.returncode == 0, said.stdout or (said.stderr if said.returncode else "")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE")
    parser.add_argument("--base", metavar="REF")
    parser.add_argument("--most", type=int, default=8, metavar="FILES")
    arguments = parser.parse_args()
    database = ROOT / "build/release/compile_commands.json"
    if shutil.which(PROGRAM) is None:
        print(f"{PROGRAM} is not installed")
        return SKIPPED
    if not database.exists():
        sys.exit(f"{database} is missing: configure the preset release")
    names = arguments.files
    if not names:
        base = arguments.base or default_base()
        names = changed_files(base) if base else None
        if names is None:
            print(f"git has no history here that tells what has changed since {base or MAIN}")
            return SKIPPED
        names = [name for name in names if is_checked(name)]
        print(f"{len(names)} files have changed since {base[:12]}; {min(len(names), arguments.most)} "
              "are checked")
        names = names[:arguments.most]
    commands = read_commands(database)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        found = 0
        for name, (is_good, said) in zip(names, pool.map(lambda name: check(name, commands), names)):
            print(f"{name}: {'good' if is_good else 'found'}\n{said}", end="", flush=True)
            found += not is_good
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
