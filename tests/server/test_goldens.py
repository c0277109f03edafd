"""What the daemon said before, which moves of code must not change: its options, its document of
endpoints, its metrics, fingerprints, and greedy answers of every row of the kernel table to the bit.

The files lie in tests/goldens; scripts/checks/update_goldens writes them anew.
"""

import os
import pathlib
import re
import shutil
import struct
import sys

import gguf
import pytest
from conftest import DEMO, FIXTURES, ROOT, run_program

sys.path.insert(0, str(ROOT / "tests"))
import goldens  # noqa: E402

ROWS = ("scalar", "avx2", "avx512", "avx512bf16", "amx")
PROFILES = ("fast", "exact")
# A fingerprint covers the time at which the model's file changed.
CHANGED_SECONDS = 1_700_000_000
# Architectures and formats: a name, its file, its profile.
MODELS = (
    ("llama-f16", FIXTURES / "logits/llama-gqa-f16.gguf", "fast"),
    ("qwen2-f32", FIXTURES / "logits/qwen2-gqa-f32.gguf", "fast"),
    ("qwen3moe-f16", FIXTURES / "logits/qwen3moe-gqa-f16.gguf", "exact"),
    ("qwen3vl-q8_0", FIXTURES / "families/qwen3vl-q8_0.gguf", "fast"),
    ("demo", DEMO, "fast"),
    ("demo-exact", DEMO, "exact"),
)
# Formats that none of these holds. `exact` is one function in every row. `fast` is one in scalar,
# avx2 and avx512; avx512bf16 has a product of its own for BF16, amx for all formats.
FORMAT_MODELS = (
    ("llama-bf16", None, "fast"),  # bf16_copy()
    ("llama-bf16-exact", None, "exact"),
    # make_model.py --shape tiny-llama --layers 1 --format Q4_K_M
    ("llama-q4_k_m", FIXTURES / "formats/llama-q4_k_m.gguf", "fast"),
    ("llama-q4_k_m-exact", FIXTURES / "formats/llama-q4_k_m.gguf", "exact"),
)
# Rows of which tests/goldens/answers/formats has no file yet: no machine that has them has written
# it. Their test is skipped there, and says so. When a file is written, its row leaves this list.
AWAITED = ("amx",)
# More tokens than a pass takes, so that the prompt comes in chunks.
CHUNKED = ("--batch-tokens", "32", "--context", "192", "--sequences", "4")
STORY = "Once there was a small dog who wanted to see the sea. " * 3
TOLD = [{"role": "user", "content": "Tell me a story about a dog that can swim. " * 3}]


@pytest.fixture
def dated(tmp_path):
    """A copy of a model's file whose time of change is always the same."""

    def copy(path):
        target = tmp_path / pathlib.Path(path).name
        if not target.exists():
            shutil.copyfile(path, target)
            os.utime(target, (CHANGED_SECONDS, CHANGED_SECONDS))
        return target

    return copy


@pytest.fixture(params=ROWS)
def row(request):
    """A row of the kernel table; those that the machine lacks are skipped."""
    tried = run_program("plan", "--no-measure", "--isa", request.param, "--model", DEMO)
    if "which this machine lacks" in tried.stderr:
        pytest.skip(f"this machine lacks {request.param}: {tried.stderr.strip()}")
    return request.param


def bits(number):
    """The f32 that a JSON number stands for, in hexadecimal digits."""
    return struct.pack(">f", number).hex()


def chat_record(answer):
    choice = answer["choices"][0]
    tokens = [[one["token"], bits(one["logprob"])] + [bits(top["logprob"]) for top in
              one["top_logprobs"]] for one in choice["logprobs"]["content"]]
    return {"text": choice["message"]["content"], "finish": choice["finish_reason"],
            "usage": answer["usage"], "tokens": tokens}


def completion_record(answer):
    choice = answer["choices"][0]
    logprobs = choice["logprobs"]
    tokens = [[token, bits(own)] + [bits(value) for value in top.values()] for token, own, top in
              zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"])]
    return {"text": choice["text"], "finish": choice["finish_reason"], "usage": answer["usage"],
            "tokens": tokens}


def completion(daemon, prompt, count=12):
    answer = daemon.post("/v1/completions", {
        "model": daemon.model_name(), "prompt": prompt, "max_tokens": count, "temperature": 0,
        "logprobs": 3, "ignore_eos": True})
    assert answer.status_code == 200, answer.text
    return completion_record(answer.json())


def chat(daemon):
    answer = daemon.post("/v1/chat/completions", {
        "model": daemon.model_name(), "messages": TOLD, "max_tokens": 12, "temperature": 0,
        "logprobs": True, "top_logprobs": 3})
    assert answer.status_code == 200, answer.text
    return chat_record(answer.json())


def greedy_records(start, row, models):
    records = []
    for name, path, profile in models:
        daemon = start("--isa", row, "--arithmetic", profile, *CHUNKED, model=path)
        daemon.wait_until_ready()
        long_prompt = [3 + 7 * index % 96 for index in range(75)]
        answers = {"completion": completion(daemon, STORY if path == DEMO else long_prompt)}
        if path == DEMO:
            answers["chat"] = chat(daemon)
        else:
            answers["short completion"] = completion(daemon, long_prompt[:5])
        records += [{"model": name, "arithmetic": profile, "request": kind, **answer}
                    for kind, answer in answers.items()]
        assert daemon.stop() == 0
    print(f"compared: {row}")
    return goldens.lines_of(records)


def test_greedy_answers_have_their_bits_on_every_row_of_the_kernel_table(start, row):
    goldens.compare(f"answers/{row}.jsonl", greedy_records(start, row, MODELS))


def bf16_copy(source, target):
    """The model with its halves rounded to BF16, which has their size: no byte moves."""
    shutil.copyfile(source, target)
    for tensor in gguf.GGUFReader(target, "r+").tensors:
        if tensor.tensor_type == gguf.GGMLQuantizationType.F16:
            stored = gguf.quants.quantize(
                tensor.data.astype("float32"), gguf.GGMLQuantizationType.BF16)
            tensor.data.view("uint8")[...] = stored.view("uint8")
            tensor.field.parts[4][0] = gguf.GGMLQuantizationType.BF16
    return target


def test_greedy_answers_of_bf16_and_of_k_quants_have_their_bits(start, row, tmp_path):
    name = f"answers/formats/{row}.jsonl"
    if row in AWAITED and not goldens.is_there(name):
        pytest.skip(f"golden awaited: this machine can write tests/goldens/{name} with "
                    "scripts/checks/update_goldens")
    bf16 = bf16_copy(FIXTURES / "logits/llama-gqa-f16.gguf", tmp_path / "llama-bf16.gguf")
    models = [(model, path or bf16, profile) for model, path, profile in FORMAT_MODELS]
    goldens.compare(name, greedy_records(start, row, models))


def test_the_rows_whose_goldens_are_awaited_are_those_without_a_file():
    assert AWAITED == tuple(
        row for row in ROWS if not (goldens.FOLDER / f"answers/formats/{row}.jsonl").exists())


def test_fingerprints_are_those_of_before_on_every_row_and_profile(start, row, dated):
    records = []
    for path in (FIXTURES / "logits/llama-gqa-f16.gguf", FIXTURES / "families/qwen3vl-q8_0.gguf"):
        for profile in PROFILES:
            daemon = start("--isa", row, "--arithmetic", profile, model=dated(path))
            daemon.wait_until_ready()
            records.append({"model": path.name, "arithmetic": profile,
                            "system_fingerprint": daemon.get("/version").json()[
                                "system_fingerprint"]})
            assert daemon.stop() == 0
    goldens.compare(f"fingerprints/{row}.jsonl", goldens.lines_of(records))


def test_options_have_their_defaults():
    shown = run_program("--print-config", "--model", "config/demo.gguf", cwd=ROOT)
    assert shown.returncode == 0, shown.stderr
    goldens.compare("print_config.json", shown.stdout)


def test_the_document_of_endpoints_is_that_of_before(daemon):
    goldens.compare("openapi.json", daemon.get("/openapi.json").text)


def metric_shapes(text):
    """A line per metric: its name, its type, the names of its series and of their labels."""
    types, shapes = {}, {}
    for line in text.splitlines():
        if found := re.fullmatch(r"# TYPE (\S+) (\S+)", line):
            types[found[1]] = found[2]
        elif found := re.fullmatch(r"([^\s{#]+)(?:\{(.*)\})? \S+", line):
            labels = re.findall(r'(\w+)="(?:[^"\\]|\\.)*"', found[2] or "")
            shapes.setdefault(found[1], set()).add(tuple(labels))
    lines = [f"{name} {kind}" for name, kind in types.items()]
    lines += [f"series {name} {{{', '.join(one)}}}" for name, all_labels in shapes.items()
              for one in sorted(all_labels)]
    return "\n".join(sorted(lines)) + "\n"


def test_metrics_have_their_names_types_and_labels(start):
    daemon = start("--devices", "cpu", *CHUNKED, model=DEMO)
    daemon.wait_until_ready()
    completion(daemon, STORY)
    chat(daemon)
    assert daemon.post("/v1/completions", {"model": "absent", "prompt": "x"}).status_code == 404
    assert daemon.get("/nowhere").status_code == 404
    goldens.compare("metrics.txt", metric_shapes(daemon.get("/metrics").text))
