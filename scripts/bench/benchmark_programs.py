"""The programs that compare.py runs, llama.cpp's and lockstepd: how they are asked, on processors
and on GPUs, and what is read of what they print."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from benchmark_page import shown_command

ALL_LAYERS = 99  # that llama.cpp is to have on GPUs: more than models have


class CompareError(Exception):
    """What was given cannot be compared, or a program failed."""


@dataclasses.dataclass(frozen=True)
class Test:
    kind: str  # "pp" or "tg"
    tokens: int
    depth: int = 0
    sequences: int = 1

    @staticmethod
    def parse(text: str) -> "Test":
        found = re.fullmatch(r"(pp|tg)(\d+)(?:@d(\d+))?(?:x(\d+))?", text)
        if not found or int(found[2]) == 0 or found[4] == "0":
            raise CompareError(f"\"{text}\" is no test; one is like pp512, tg64@d8192 or "
                               "tg64@d128x8")
        test = Test(found[1], int(found[2]), int(found[3] or 0), int(found[4] or 1))
        if test.sequences > 1 and (test.kind == "pp" or test.depth == 0):
            raise CompareError(f"\"{text}\": several sequences are compared while they generate, "
                               "after a prompt: tg64@d128x8")
        return test

    def __str__(self) -> str:
        depth = f"@d{self.depth}" if self.depth else ""
        return f"{self.kind}{self.tokens}{depth}" + (f"x{self.sequences}" if self.together else "")

    @property
    def together(self) -> bool:
        return self.sequences > 1


@dataclasses.dataclass(frozen=True)
class Variant:
    """A way of running one of the programs."""
    name: str
    options: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Work:
    """Of one token."""
    bytes: float
    operations: float
    quantized: bool = True  # the weights


@dataclasses.dataclass(frozen=True)
class Limits:
    """Per second."""
    bytes: float
    operations: dict[str, float]  # by kind: "avx2 int8 dot product"
    gpus: tuple[str, ...] = ()  # the names of those whose limits these are; none: the processors'

    def fastest(self, quantized: bool) -> str:
        kinds = [kind for kind in self.operations if quantized or "int8" not in kind]
        return max(kinds, key=self.operations.__getitem__)

    def tokens_per_second(self, work: Work) -> float:
        operations = self.operations[self.fastest(work.quantized)]
        return min(self.bytes / work.bytes, operations / work.operations)


Samples = dict[Test, list[float]]  # tokens per second


@dataclasses.dataclass(frozen=True)
class Gpus:
    """What both programs are shown to compute on, and take all of."""
    text: str  # as --devices names them
    visible: str | None  # CUDA_VISIBLE_DEVICES; none: the machine's

    @staticmethod
    def parse(text: str, visible: str | None) -> "Gpus":
        """Numbers count as CUDA does: among `visible`, what CUDA_VISIBLE_DEVICES is already."""
        if text == "gpu":
            return Gpus(text, visible)
        names = text.split(",")
        if not all(re.fullmatch(r"gpu\d+", name) for name in names):
            raise CompareError(f"--devices {text}: name GPUs alone: gpu (every one), or some, like "
                               "gpu0,gpu1")
        chosen = sorted({int(name.removeprefix("gpu")) for name in names})
        shown = [str(index) for index in range(chosen[-1] + 1)]
        if visible is not None:
            shown = [name for name in visible.split(",") if name]
        if chosen[-1] >= len(shown):
            raise CompareError(f"--devices {text}: there is no gpu{chosen[-1]} among "
                               f"CUDA_VISIBLE_DEVICES={visible}")
        return Gpus(text, ",".join(shown[index] for index in chosen))

    @property
    def environment(self) -> dict[str, str]:
        return {} if self.visible is None else {"CUDA_VISIBLE_DEVICES": self.visible}


def run(command: list, environment: dict[str, str] | None = None) -> str:
    """The program's standard output."""
    print(f"  {shown_command(command, environment)}", file=sys.stderr, flush=True)
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                              env={**os.environ, **(environment or {})}, check=False)
    except OSError as error:
        raise CompareError(f"{command[0]} cannot be run: {error.strerror}") from error
    if done.returncode != 0:
        raise CompareError(f"{shown_command(command)} ended with {done.returncode}: "
                           f"{done.stderr.strip()[-800:]}")
    return done.stdout


def json_lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def samples_of_llama_bench(text: str) -> Samples:
    """From its output as jsonl."""
    samples: Samples = {}
    for row in json_lines(text):
        if row["n_prompt"] and row["n_gen"]:
            continue
        kind, tokens = ("pp", row["n_prompt"]) if row["n_prompt"] else ("tg", row["n_gen"])
        test = Test(kind, tokens, row.get("n_depth", 0))
        samples.setdefault(test, []).extend(row["samples_ts"])
    return samples


def samples_of_batched_bench(text: str) -> Samples:
    samples: Samples = {}
    for row in json_lines(text):
        samples.setdefault(Test("tg", row["tg"], row["pp"], row["pl"]), []).append(row["speed_tg"])
    return samples


def by_depth(tests) -> dict[int, list[Test]]:
    """Those of one sequence."""
    groups: dict[int, list[Test]] = {}
    for test in tests:
        if not test.together:
            groups.setdefault(test.depth, []).append(test)
    return groups


def counts(tests: list[Test], kind: str) -> str:
    return ",".join(str(test.tokens) for test in tests if test.kind == kind) or "0"


@dataclasses.dataclass
class Peer:
    bench: Path
    batched: Path
    threads: int
    repeat: int
    gpus: Gpus | None = None

    @property
    def environment(self) -> dict[str, str]:
        return self.gpus.environment if self.gpus else {}

    def require_gpus(self, count: int, tests) -> None:
        """Asks the programs that the tests need. One that has no CUDA would compute on the
        processors without a word."""
        for program in [self.bench, self.batched]:
            if program == self.batched and not any(test.together for test in tests):
                continue
            listed = run([program, "--list-devices"], self.environment)
            found = len(re.findall(r"^\s*CUDA\d+: ", listed, flags=re.MULTILINE))
            if found != count:
                raise CompareError(f"{program} lists {found} of CUDA's GPUs where lockstepd finds "
                                   f"{count}; build llama.cpp with -DGGML_CUDA=ON")

    def commands(self, model: Path, tests, variant: Variant) -> list[list]:
        common = ["-m", model, "-t", self.threads]
        if self.gpus:
            common += ["-ngl", ALL_LAYERS]
        made = []
        for depth, group in by_depth(tests).items():
            made.append([self.bench, *common, "-p", counts(group, "pp"), "-n", counts(group, "tg"),
                         "-d", depth, "-r", self.repeat, "-o", "jsonl", *variant.options])
        for test in tests:
            if test.together:
                context = (test.depth + test.tokens) * test.sequences
                made += [[self.batched, *common, "-c", context, "-npp", test.depth, "-ntg",
                          test.tokens, "-npl", test.sequences, "--output-format", "jsonl",
                          *variant.options]] * self.repeat
        return made

    def measure(self, model: Path, tests, variant: Variant) -> Samples:
        samples: Samples = {}
        for command in self.commands(model, tests, variant):
            output = run(command, self.environment)
            batched = command[0] == self.batched
            found = samples_of_batched_bench(output) if batched else samples_of_llama_bench(output)
            for test, values in found.items():
                samples.setdefault(test, []).extend(values)
        return complete(samples, tests, self.bench)


@dataclasses.dataclass
class Ours:
    program: Path
    isa: str | None
    repeat: int
    machine_options: tuple[str, ...]
    gpus: Gpus | None = None

    @property
    def environment(self) -> dict[str, str]:
        isa = {"LOCKSTEP_ISA": self.isa} if self.isa else {}
        return {**isa, **(self.gpus.environment if self.gpus else {})}

    def commands(self, model: Path, tests, variant: Variant) -> list[list]:
        common = [self.program, "bench", "--model", model]
        if self.gpus:
            common += ["--devices", "gpu"]
        rest = ["--repeat", self.repeat, "--no-limits", "--json", *variant.options]
        made = []
        for depth, group in by_depth(tests).items():
            made.append([*common, "--prompt", counts(group, "pp"), "--generate",
                         counts(group, "tg"), "--depth", depth, *rest])
        for test in tests:
            if test.together:
                made.append([*common, "--prompt", 0, "--generate", test.tokens, "--depth",
                             test.depth, "--sequences", test.sequences, *rest])
        return made

    def measure(self, model: Path, tests, variant: Variant) -> tuple[Samples, dict[Test, Work]]:
        samples: Samples = {}
        works: dict[Test, Work] = {}
        for command in self.commands(model, tests, variant):
            body = json.loads(run(command, self.environment))
            for row in body["results"]:
                test = test_of_lockstep(row)
                samples.setdefault(test, []).extend(row["samples"])
                works[test] = Work(row["bytes_per_token"], row["operations_per_token"],
                                   body["format"].startswith("Q"))
        return complete(samples, tests, self.program), works

    def limits(self) -> Limits:
        body = json.loads(run([self.program, "bench-machine", "--json", "--no-exchanges",
                               *self.machine_options],
                              self.gpus.environment if self.gpus else None))
        return limits_of_gpus(body, self.gpus) if self.gpus else limits_of(body, self.isa)


def higher(first: Limits, second: Limits) -> Limits:
    """Of two on the same devices: what was disturbed is no limit."""
    operations = {kind: max(rate, second.operations[kind])
                  for kind, rate in first.operations.items()}
    return Limits(max(first.bytes, second.bytes), operations, first.gpus)


def test_of_lockstep(row: dict) -> Test:
    kind, tokens = (("pp", row["prompt_tokens"]) if row["prompt_tokens"]
                    else ("tg", row["generated_tokens"]))
    return Test(kind, tokens, row["depth_tokens"], row["sequences"])


def limits_of(body: dict, isa: str | None) -> Limits:
    """From bench-machine's JSON: every node's cores at its own memory, and the arithmetic of the
    instruction set (none: of all)."""
    reads = [path["read_bytes_per_second"] for path in body["paths"]
             if path["from_node"] == path["to_node"]]
    operations = {f"{each['isa']} {each['operation']}": each["operations_per_second"]
                  for each in body["arithmetic"] if isa is None or each["isa"] == isa}
    if not operations:
        raise CompareError(f"bench-machine measured no arithmetic of --isa {isa}")
    return Limits(sum(reads), operations)


def limits_of_gpus(body: dict, gpus: Gpus) -> Limits:
    """From bench-machine's JSON: all GPUs together. Weights of any format are multiplied as
    bf16."""
    found = body["gpus"]
    if not found:
        raise CompareError(f"lockstepd finds no GPU for --devices {gpus.text}: {body['no_gpus']}")
    if gpus.text != "gpu" and len(found) != len(gpus.visible.split(",")):
        raise CompareError(f"--devices {gpus.text}: lockstepd finds {len(found)} of these GPUs")
    for gpu in found:
        if gpu["failure"]:
            raise CompareError(f"bench-machine: {gpu['failure']}")
    product = sum(gpu["bf16_product_operations_per_second"] for gpu in found)
    return Limits(sum(gpu["read_bytes_per_second"] for gpu in found), {"bf16 product": product},
                  tuple(gpu["name"] for gpu in found))


def complete(samples: Samples, tests, program: Path) -> Samples:
    missing = [str(test) for test in tests if not samples.get(test)]
    if missing:
        raise CompareError(f"{program} reported nothing for {', '.join(missing)}")
    return samples
