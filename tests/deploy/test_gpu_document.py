"""deploy/gpu: what it names is there, and its sums are right. Nobody has tried it on a GPU."""

import re

from conftest import DEPLOY

ROOT = DEPLOY.parent
TEXT = (DEPLOY / "gpu/README.md").read_text()


def constant(file, name):
    return int(re.search(rf"{name}\{{(\d+)\}}", (ROOT / file).read_text())[1])


def test_every_link_of_the_documents_leads_somewhere():
    for document in DEPLOY.rglob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text()):
            assert "://" in target or (document.parent / target).exists(), (document, target)


def test_it_names_metrics_and_options_that_there_are():
    metrics = "".join(path.read_text() for path in (ROOT / "server/metrics").glob("*.cpp"))
    named = set(re.findall(r"`(lockstep_[a-z_]+)`", TEXT))
    assert named
    for name in named:
        assert f'"{name}"' in metrics, name
    options = (ROOT / "server/options/option_table.cpp").read_text()
    for name in ("devices", "exchange-format", "gpu-deadline"):
        assert f"`--{name}" in TEXT and f'"{name}"' in options


def test_its_deadlines_are_the_programs():
    platform = "engine/runtime/gpu/gpu_platform.h"
    deadline = constant(platform, "kPassDeadline")
    assert f"A pass has {deadline} s" in TEXT
    options = (ROOT / "server/options/option_table.cpp").read_text()
    assert f'{{"gpu-deadline", kLoading, kInteger, {deadline}, ' in options
    words = " ".join(TEXT.split())
    assert "pass_deadline) * 3 / 4" in (ROOT / platform).read_text()
    wait = deadline * 3 // 4
    assert f"over peer memory one waits {wait} s for another" in words
    assert f"is stopped for more than {wait} s" in words


def test_what_a_split_over_two_hosts_would_cost_is_computed_from_its_shapes():
    sums_of = []
    for row in re.findall(r"^\| Llama\S+ \|(.*)\|$", TEXT, re.M):
        layers, columns, *told = (int(cell.replace(",", "")) for cell in row.split("|"))
        sums, of_sum = 2 * layers, 4 * columns
        assert told == [sums, of_sum, sums * of_sum, 512 * sums * of_sum]
        sums_of.append((sums, told[-1]))
    assert len(sums_of) == 2
    (sums, prompt), (more_sums, longer_prompt) = sums_of
    words = " ".join(TEXT.split())
    assert f"{sums} us ({more_sums} us) more for each token" in words
    assert f"{sums * 20e-3:.2f} ms ({more_sums * 20e-3:.1f} ms)" in words
    short, long = (each * 8 / 100e9 * 1e3 for each in (prompt, longer_prompt))
    assert f"take {short:.0f} ms ({long:.0f} ms) at 100 Gbit/s" in words
