"""The documents: links lead somewhere, and files that they name exist."""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Paths in these are held to exist; "engine" is where engine's own pages begin their paths.
NAMING = ["README.md", "engine/README.md", "engine/docs/*.md", "deploy/*.md", "scripts/README.md"]
PATH = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.*/-]*")
SUFFIXES = (".h", ".cpp", ".cu", ".md", ".py", ".json", ".txt", ".yaml", ".sh", ".cmake")
# Paths of other machines, and files that a user makes.
NO_PATHS = re.compile(r"structured_outputs|/|~|v1/|key\.json|keys\.json|report\.json|llama|libcublas|.*\.(gguf|so)")


def tracked_files():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                            cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        return [name for name in listed.stdout.split("\n") if (ROOT / name).is_file()]
    return [str(path.relative_to(ROOT)) for path in ROOT.rglob("*")
            if path.is_file() and path.relative_to(ROOT).parts[0] not in {"build", ".git"}]


FILES = tracked_files()
NAMES = {pathlib.PurePath(name).name for name in FILES}
TOP = {name.split("/")[0] for name in FILES if "/" in name}
LAYERS = {name.split("/")[1] for name in FILES if name.startswith("engine/") and name.count("/") > 1}


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text):
    """What GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", without_code(text), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page, text):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            yield target
        elif anchor and anchor not in anchors(path.read_text()):
            yield target


def missing_paths(page, text):
    """Those in backticks: of the tree, of engine's layers, or names of files."""
    for word in re.findall(r"`([^`\n]+)`", without_code(text)):
        word = word.split(" ")[0].rstrip("/")
        if not PATH.fullmatch(word) or NO_PATHS.match(word):
            continue
        folder = word.split("/")[0]
        if "/" in word and (folder in TOP or folder in LAYERS):
            places = [ROOT, ROOT / "engine", page.parent]
            if not any(list(place.glob(word)) for place in places):
                yield word
        elif "/" not in word and word.endswith(SUFFIXES) and "*" not in word:
            if word not in NAMES and not any(name.endswith(word) for name in NAMES):
                yield word


def test_every_relative_link_resolves():
    wrong = [f"{name}: {target}" for name in FILES if name.endswith(".md")
             for target in broken_links(ROOT / name, (ROOT / name).read_text())]
    assert not wrong, wrong


def test_every_path_that_a_document_names_exists():
    pages = [page for pattern in NAMING for page in sorted(ROOT.glob(pattern))]
    assert len(pages) > 15
    wrong = [f"{page.relative_to(ROOT)}: {word}"
             for page in pages for word in missing_paths(page, page.read_text())]
    assert not wrong, wrong


def unclosed_blocks(text):
    """Lines of fences that open no block and close none, by their number."""
    opened = None
    for number, line in enumerate(text.split("\n"), 1):
        if not line.startswith("```"):
            continue
        if opened is None:
            opened = number
        elif line == "```":
            opened = None
        else:  # a block within a block
            yield opened
            opened = number
    if opened is not None:
        yield opened


def broken_commands(text):
    """Lines of shell blocks that no shell reads, with where each block begins."""
    for block in re.finditer(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        commands = block.group(1)
        read = subprocess.run(["bash", "-n"], input=commands, capture_output=True, text=True)
        if read.returncode != 0 or re.search(r"^-", commands, flags=re.MULTILINE):
            yield commands


def test_every_block_of_code_is_closed_and_every_command_is_one():
    wrong = []
    for name in FILES:
        if not name.endswith(".md"):
            continue
        text = (ROOT / name).read_text()
        wrong += [f"{name}:{number}" for number in unclosed_blocks(text)]
        wrong += [f"{name}: {commands}" for commands in broken_commands(text)]
    assert not wrong, wrong


def test_broken_blocks_are_found():
    assert list(unclosed_blocks("```sh\na\n```\n{}\n```\n\n```sh\na\n```\n")) == [5]
    assert list(unclosed_blocks("```\na\n```\n")) == []
    assert list(broken_commands("```sh\na \"b\n```\n")) == ['a "b\n']
    assert list(broken_commands("```sh\na\n--b c\n```\n")) == ["a\n--b c\n"]
    assert list(broken_commands("```sh\na \\\n  --b c    # d\n```\n")) == []


def test_a_broken_link_and_a_path_of_nothing_are_found():
    page = ROOT / "engine/README.md"
    text = ("[a](../LICENSE) [b](gone.md) [c](#nothing) [d](#words) [e](README.md#gone)\n"
            "`scripts/gone` `scripts/test -R Http` `kernels/gone.h` `base/result.h` `gone.cpp` `a/b`")
    assert list(broken_links(page, text)) == ["gone.md", "#nothing", "README.md#gone"]
    assert list(missing_paths(page, text)) == ["scripts/gone", "kernels/gone.h", "gone.cpp"]


def test_scripts_names_have_one_style_and_a_line_in_their_page():
    described = (ROOT / "scripts/README.md").read_text()
    wrong = []
    for name in FILES:
        if not name.startswith("scripts/") or name.endswith("README.md"):
            continue
        path = ROOT / name
        first = path.read_text().split("\n")[0]
        runs = first.startswith("#!")
        suffix = ".py" if not runs and path.suffix == ".py" or "python" in first else (
            "" if runs else ".sh")
        if not re.fullmatch(r"[a-z0-9_]+", path.stem) or path.suffix != suffix:
            wrong.append(f"{name} should be snake_case and end in '{suffix}'")
        if runs != bool(path.stat().st_mode & 0o100):
            wrong.append(f"{name}: what has a #! line is executable, and nothing else is")
        if f"`{path.name}`" not in described:
            wrong.append(f"{name} has no line in scripts/README.md")
    assert not wrong, wrong
