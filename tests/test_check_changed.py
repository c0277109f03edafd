"""scripts/checks/check_changed.py, in a tree of its own."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
SCRIPT = "scripts/checks/check_changed.py"
GOOD = "int one(int a) {\n  if (a > 0) return 1;\n  return 0;\n}\n"
BAD = "int one(int a) {\n  if (a > 0);\n  return sizeof(sizeof(a));\n}\n"


class Tree:
    def __init__(self, root):
        self.root = root
        for name in (SCRIPT, ".clang-tidy"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
        self.write("build/release/compile_commands.json", json.dumps([
            {"directory": str(root), "file": str(root / "engine/base/old.cpp"),
             "command": "c++ -Wall -DHAS_ONE -std=c++23 -o old.o -c engine/base/old.cpp"}]))
        self.write(".gitignore", "build\ncache\n")

    def write(self, name, text):
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def git(self, *arguments):
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e", *arguments],
                       cwd=self.root, check=True, capture_output=True)

    def commit(self, **files):
        for name, text in files.items():
            self.write(name, text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message=change")

    def run(self, *arguments, **environment):
        said = subprocess.run([sys.executable, self.root / SCRIPT, *arguments],
                              capture_output=True, text=True,
                              env=os.environ | {"XDG_CACHE_HOME": f"{self.root}/cache"} | environment)
        return said.returncode, said.stdout + said.stderr


@pytest.fixture
def tree(tmp_path):
    if shutil.which("clang-tidy-19") is None:
        pytest.skip("clang-tidy-19 is not installed")
    tree = Tree(tmp_path)
    tree.git("init", "--quiet", "--initial-branch=main")
    tree.commit(**{"engine/base/old.cpp": BAD, "engine/base/good.h": GOOD})
    tree.git("update-ref", "refs/remotes/origin/main", "HEAD")
    return tree


def test_what_a_branch_changes_is_checked_and_nothing_else(tree):
    tree.commit(**{"engine/base/new.h": "#ifdef HAS_ONE\n" + BAD + "#endif\n", "tests/a.cpp": BAD,
                   "engine/kernels/cuda/a.inl.h": BAD, "server/b.cpp": "#include <cuda.h>\n"})
    code, said = tree.run()
    assert code == 1, said
    assert "1 files have changed" in said and "engine/base/new.h: found" in said
    assert "bugprone-suspicious-semicolon" in said and "old.cpp" not in said


def test_what_is_not_committed_is_checked_as_well(tree):
    tree.commit(**{"engine/base/new.cpp": GOOD})
    tree.write("engine/base/good.h", BAD)
    code, said = tree.run()
    assert code == 1 and "good.h: found" in said and "new.cpp: good" in said


def test_the_newest_are_checked_where_there_are_too_many(tree):
    for index in range(3):
        tree.commit(**{f"engine/base/new{index}.cpp": GOOD if index else BAD})
    code, said = tree.run("--most", "2")
    assert code == 0, said
    assert "3 files have changed" in said and "2 are checked" in said and "new0" not in said
    assert tree.run("--most", "3")[0] == 1


def test_on_main_itself_the_last_commits_are_checked(tree):
    for index in range(6):
        tree.commit(**{f"server/new{index}.cpp": GOOD if index else BAD})
    tree.git("update-ref", "refs/remotes/origin/main", "HEAD")
    code, said = tree.run()
    assert code == 0 and "5 files have changed" in said and "new0" not in said, said


def test_files_that_the_build_joins_have_its_flags(tree):
    joined = tree.root / "build/release/server/Unity/unity_0_cxx.cxx"
    tree.write(joined, f'/* generated */\n\n#include "{tree.root}/server/joined.cpp"\n')
    database = tree.root / "build/release/compile_commands.json"
    database.write_text(json.dumps(json.loads(database.read_text()) + [
        {"directory": str(tree.root), "file": str(joined),
         "command": f"c++ -DIS_JOINED -std=c++23 -o joined.o -c {joined}"},
        {"directory": str(tree.root), "file": str(tree.root / "server/other.cpp"),
         "command": "c++ -std=c++23 -o other.o -c server/other.cpp"}]))
    tree.commit(**{"server/joined.cpp": "#ifdef IS_JOINED\n" + BAD + "#endif\n"})
    code, said = tree.run()
    assert code == 1 and "joined.cpp: found" in said, said


def test_files_can_be_named(tree):
    code, said = tree.run("engine/base/old.cpp")
    assert code == 1 and "old.cpp: found" in said


def test_good_files_are_read_again_only_when_something_that_decides_has_changed(tree):
    """A program that says who called it, and finds nothing."""
    called = tree.root / "build/called"
    tree.write("build/bin/clang-tidy-19", f"""#!/bin/sh
echo "$*" >> {called}
exec {shutil.which("clang-tidy-19")} "$@"
""")
    (tree.root / "build/bin/clang-tidy-19").chmod(0o755)
    path = {"PATH": f"{tree.root}/build/bin:{os.environ['PATH']}"}

    def times_read():
        called.unlink(missing_ok=True)
        code, said = tree.run("engine/base/new.cpp", **path)
        return code, called.read_text().count("new.cpp")

    tree.write("engine/base/used.h", "#ifdef IS_BAD\n" + BAD + "#endif\n")
    tree.write("engine/base/new.cpp", '#include "used.h"\n' + GOOD.replace("one", "two"))
    assert times_read() == (0, 1)
    assert times_read() == (0, 0)
    tree.write("engine/base/used.h", "#ifdef IS_BAD\nint three();\n#endif\n")
    assert times_read() == (0, 1)
    tree.write(".clang-tidy", (tree.root / ".clang-tidy").read_text() + "# changed\n")
    assert times_read() == (0, 1)
    tree.write(SCRIPT, (tree.root / SCRIPT).read_text() + "# changed\n")
    assert times_read() == (0, 1)
    database = tree.root / "build/release/compile_commands.json"
    database.write_text(database.read_text().replace("HAS_ONE", "HAS_TWO"))
    assert times_read() == (0, 1)
    assert times_read() == (0, 0)
    # A file in which something was found is read each time.
    tree.write("engine/base/new.cpp", BAD)
    assert times_read() == times_read() == (1, 1)
    # A clone in another folder has the same text, flags and checks.
    tree.write("engine/base/new.cpp", GOOD)
    assert times_read() == (0, 1)
    here = str(tree.root)
    tree.root = pathlib.Path(shutil.copytree(here, here + "-clone"))
    database = tree.root / "build/release/compile_commands.json"
    database.write_text(database.read_text().replace(here, str(tree.root)))
    path["XDG_CACHE_HOME"] = here + "/cache"
    assert times_read() == (0, 0)


def test_a_file_that_changes_before_it_is_read_is_not_remembered(tree):
    """A program that finds the file mended when it begins to read."""
    name = "engine/base/new.cpp"
    tree.write("build/mended.cpp", GOOD)
    tree.write("build/bin/clang-tidy-19", f"""#!/bin/sh
[ "$1" = --version ] || cp {tree.root}/build/mended.cpp {tree.root}/{name}
exec {shutil.which("clang-tidy-19")} "$@"
""")
    (tree.root / "build/bin/clang-tidy-19").chmod(0o755)
    tree.write(name, BAD)
    assert tree.run(name, PATH=f"{tree.root}/build/bin:{os.environ['PATH']}")[0] == 0
    tree.write(name, BAD)
    assert tree.run(name)[0] == 1


def test_what_a_machine_lacks_is_a_skip_with_a_reason(tree):
    assert tree.run(PATH="/nonexistent") == (77, "clang-tidy-19 is not installed\n")
    shutil.rmtree(tree.root / ".git")
    code, said = tree.run(GIT_CEILING_DIRECTORIES=str(tree.root.parent))
    assert code == 77 and "git has no history here" in said
