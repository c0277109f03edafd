"""The command line: options and their sources, generate, bench and inspect."""

import json
import re
import signal
import subprocess

import pytest

from conftest import PATIENCE_SECONDS, PROGRAM, ROOT, clean_environment, run_program


def configuration(*arguments, environment=None):
    result = run_program("--print-config", *arguments, environment=environment)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def refusal(*arguments, environment=None, code=2):
    result = run_program(*arguments, environment=environment)
    assert result.returncode == code, result.stdout + result.stderr
    assert result.stderr.startswith("lockstepd: "), result.stderr
    return result.stderr


def test_help_names_every_option_and_every_variable():
    result = run_program("--help")
    assert result.returncode == 0 and result.stderr == ""
    for name in configuration():
        assert f"--{name} " in result.stdout, name
        assert "LOCKSTEP_" + name.upper().replace("-", "_") in result.stdout, name
    for flag in ("--config", "--check-config", "--print-config", "--version", "--help"):
        assert flag in result.stdout
    for command in ("generate", "bench", "bench-machine", "plan", "inspect"):
        assert command in result.stdout
        assert run_program(command, "--help").returncode == 0


def test_serve_is_the_command_without_a_name():
    assert configuration("--port", "9") == json.loads(
        run_program("serve", "--print-config", "--port", "9").stdout)


def test_the_version_is_printed():
    assert re.fullmatch(r"lockstepd \d+\.\d+\.\d+\n", run_program("--version").stdout)


def test_command_line_beats_environment_beats_file(tmp_path):
    path = tmp_path / "c.json"
    path.write_text('// mine\n{"port": 1, "sequences": 2, "batch-tokens": 3}')
    values = configuration(
        "--config", path, "--port", "10",
        environment={"LOCKSTEP_PORT": "20", "LOCKSTEP_SEQUENCES": "21"})
    assert values["port"] == {"value": 10, "source": "command line"}
    assert values["sequences"] == {"value": 21, "source": "environment"}
    assert values["batch-tokens"] == {"value": 3, "source": "file"}
    assert values["host"] == {"value": "127.0.0.1", "source": "default"}


def test_the_documented_configuration_is_good_and_is_the_default():
    path = ROOT / "config/lockstepd.json"
    result = run_program("--check-config", "--config", path)
    assert result.returncode == 0, result.stderr
    defaults = configuration()
    assert {name: entry["value"] for name, entry in configuration("--config", path).items()} == {
        name: entry["value"] for name, entry in defaults.items()}


def test_the_instruction_set_may_come_from_the_environment():
    assert configuration(environment={"LOCKSTEP_ISA": "scalar"})["isa"] == {
        "value": "scalar", "source": "environment"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--port", "65536"], "--port"),
        (["--port", "abc"], "--port"),
        (["--port", "1.5"], "--port"),
        (["--port"], "--port"),
        (["--kv-format", "f8"], "--kv-format"),
        (["--kv-value-format", "q4"], "--kv-value-format"),
        (["--workers", "-1"], "--workers"),
        (["--context", "many"], "--context"),
        (["--drain-seconds", "nan"], "--drain-seconds"),
        (["--metrics", "maybe"], "--metrics"),
        (["--shares", "3:0"], "--shares"),
        (["--shares", "1:"], "--shares"),
        (["--ranks", "0"], "--ranks"),
        (["--strategy", "scatter"], "--strategy"),
        (["--nonsense"], "nonsense"),
        (["nonsense"], "nonsense"),
        (["generate", "--port", "1", "--prompt", "a"], "port"),
        (["generate"], "--prompt"),
        (["generate", "--prompt", "a", "--temperature", "3"], "--temperature"),
        (["bench", "--prompt", "1,x"], "--prompt"),
        (["bench", "--prompt", "0", "--generate", "0"], "nothing to measure"),
        (["bench", "--sequences", "0"], "--sequences"),
        (["bench", "--depth", "1,"], "--depth"),
        (["inspect"], "--model"),
        (["inspect", "--architectures", "--model", "x"], "--model"),
        (["bench-machine", "--size-mib", "1"], "--size-mib"),
        (["bench-machine", "--seconds", "-1"], "--seconds"),
        (["bench-machine", "--file", "/nowhere/f"], "/nowhere/f"),
        (["serve"], "--model"),
        (["--config", "/nowhere.json"], "/nowhere.json"),
    ],
)
def test_a_wrong_option_is_exit_2_and_is_named(arguments, named):
    assert named in refusal(*arguments)


def test_unknown_variables_and_keys_are_named(tmp_path):
    assert "LOCKSTEP_PROT" in refusal("--print-config", environment={"LOCKSTEP_PROT": "1"})
    assert "LOCKSTEP_PORT" in refusal("--print-config", environment={"LOCKSTEP_PORT": "x"})
    path = tmp_path / "c.json"
    for text, named in (('{"prot": 1}', "prot"), ('{"port": "1"}', "port"), ("[]", "array"),
                        ('{"port": 1', "c.json"), ('{"port": 1, "port": 2}', "port")):
        path.write_text(text)
        assert named in refusal("--check-config", "--config", path)


def test_check_config_reads_the_models_header(model_path, tmp_path):
    assert run_program("--check-config", "--model", model_path).returncode == 0
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF")
    assert "bad.gguf" in refusal("--check-config", "--model", bad)


def generate(model, *arguments, **more):
    result = run_program(
        "generate", "--model", model, "--prompt", "Once upon a time", *arguments, **more)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_generate_writes_the_text_the_server_would(model_path, daemon):
    served = daemon.post("/v1/completions", {
        "model": "stories", "prompt": "Once upon a time", "max_tokens": 20, "temperature": 0})
    text = generate(model_path, "--max-tokens", "20", "--temperature", "0")
    assert text == served.json()["choices"][0]["text"] + "\n"


def test_generate_repeats_itself_with_a_seed(model_path):
    texts = [generate(model_path, "--seed", seed, "--max-tokens", "24") for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_generate_gives_text_before_it_is_done_and_stops_at_sigint(model_path):
    with subprocess.Popen(
        [PROGRAM, "generate", "--model", model_path, "--prompt", "Once", "--max-tokens", "100000",
         "--ignore-eos"],
        stdout=subprocess.PIPE, env=clean_environment()) as process:
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(PATIENCE_SECONDS) == 0


def bench(model, *arguments):
    result = run_program("bench", "--model", model, "--repeat", "2", *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_bench_names_its_tests_as_llama_bench_does(model_path):
    body = json.loads(bench(
        model_path, "--prompt", "16,32", "--generate", "8", "--sequences", "1,2", "--json"))
    assert [result["test"] for result in body["results"]] == [
        "pp16", "pp32", "tg8", "pp16 x2", "pp32 x2", "tg8 x2"]
    for result in body["results"]:
        assert result["tokens_per_second"] > 0 and result["stddev"] >= 0
        assert len(result["samples"]) == 2
        assert result["shortened_passes"] == 0
        mean = sum(result["samples"]) / 2
        assert result["tokens_per_second"] == pytest.approx(mean)
        deviation = abs(result["samples"][0] - result["samples"][1]) / 2**0.5
        assert result["stddev"] == pytest.approx(deviation, abs=1e-6 * mean)
    for name in ("model", "format", "workers", "isa", "arithmetic"):
        assert body[name], name


def test_bench_can_start_after_a_depth(model_path):
    body = json.loads(bench(
        model_path, "--prompt", "8", "--generate", "4", "--depth", "64,0", "--json"))
    assert [result["test"] for result in body["results"]] == [
        "pp8 @ d64", "tg4 @ d64", "pp8", "tg4"]


def test_bench_need_not_compute_the_depth(model_path):
    def results(*options):
        body = json.loads(bench(model_path, "--prompt", "8", "--generate", "4", "--depth", "64,0",
                                "--sequences", "2", "--no-limits", "--json", *options))
        return body["results"]

    for computed, zeros in zip(results(), results("--zero-depth"), strict=True):
        assert (computed["zero_depth"], zeros["zero_depth"]) == (False, True)
        for name in ("test", "depth_tokens", "bytes_per_token", "operations_per_token"):
            assert computed[name] == zeros[name], name


def test_bench_reports_what_was_read_and_multiplied(model_path):
    body = json.loads(bench(
        model_path, "--prompt", "16", "--generate", "4", "--depth", "0,64", "--json"))
    prompt, generated, deep_prompt, deep = body["results"]
    limits = body["limits"]
    assert limits["operation"] and limits["read_bytes_per_second"] > 0
    # Integers are no limit for weights that are none.
    assert body["format"].startswith("Q") or "int8" not in limits["operation"]
    for result in body["results"]:
        assert result["share_of_read_limit"] == pytest.approx(
            result["bytes_per_second"] / limits["read_bytes_per_second"])
        assert result["share_of_operations_limit"] == pytest.approx(
            result["operations_per_second"] / limits["operations_per_second"])
        samples = result["samples"]
        rate = len(samples) / sum(1 / sample for sample in samples)
        assert result["bytes_per_token"] == pytest.approx(result["bytes_per_second"] / rate)

    # A generated token multiplies with every matrix; a prompt with the output for its last alone.
    assert generated["operations_per_token"] == pytest.approx(deep["operations_per_token"])
    assert prompt["operations_per_token"] == pytest.approx(deep_prompt["operations_per_token"])
    assert prompt["operations_per_token"] < generated["operations_per_token"]
    # A prompt reads the matrices once for all its tokens, but not 64 tokens of the cache.
    assert prompt["bytes_per_token"] < generated["bytes_per_token"] / 8
    assert deep["bytes_per_token"] > generated["bytes_per_token"]


def test_bench_can_leave_out_the_limits(model_path):
    body = json.loads(bench(
        model_path, "--prompt", "8", "--generate", "0", "--no-limits", "--json"))
    assert "limits" not in body
    (result,) = body["results"]
    assert result["bytes_per_second"] > 0 and result["share_of_read_limit"] is None


def test_bench_prints_a_table(model_path):
    lines = bench(model_path, "--prompt", "8", "--generate", "0").splitlines()
    assert len(lines) == 3
    rate = r"\| +\d+\.\d \(\d+ %\) "
    assert re.search(rf"\| +pp8 \| +\d+\.\d\d ± \d+\.\d\d {rate}{rate}\|$", lines[2])
    assert len(set(map(len, lines))) == 1


def test_inspect_shows_metadata_and_tensors(model_path):
    result = run_program("inspect", "--model", model_path)
    assert result.returncode == 0, result.stderr
    assert "general.architecture" in result.stdout
    assert "token_embd.weight" in result.stdout
    body = json.loads(run_program("inspect", "--model", model_path, "--json").stdout)
    assert "token_embd.weight" in json.dumps(body)


def test_inspect_lists_the_architectures_that_readme_lists():
    names = run_program("inspect", "--architectures").stdout.split()
    assert names == sorted(names) and len(names) == len(set(names))
    assert json.loads(run_program("inspect", "--architectures", "--json").stdout) == names
    text = (ROOT / "README.md").read_text()
    table = text[text.index("| `general.architecture` |"):].split("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert sorted(name for row in rows for name in re.findall("`(.+?)`", row)) == names


def plan(model_path, *options):
    return run_program("plan", "--model", model_path, "--workers", "1", *options)


def test_plan_shows_ranks_faults_and_speed(model_path):
    result = plan(model_path, "--ranks", "2", "--shares", "3:1")
    assert result.returncode == 0, result.stderr
    for part in ("machine\n", "node ", "rank node workers", "75.0%", "25.0%", "it fits",
                 "GB/s", "tokens/s", "held more than once: norms"):
        assert part in result.stdout, part


def test_plan_as_json_adds_up(model_path):
    body = json.loads(plan(model_path, "--ranks", "2", "--json").stdout)
    assert len(body["ranks"]) == 2 and body["fits"] and body["verdict"]
    held = sum(rank["weight_bytes"] for rank in body["ranks"])
    extra = sum(replica["extra_bytes"] for replica in body["replicas"])
    assert held - extra == pytest.approx(body["model_weight_bytes"], abs=8192)
    slowest = max(rank["seconds_per_token"] for rank in body["ranks"])
    exchange = body["exchanges_per_token"] * body["seconds_per_exchange"]
    assert body["tokens_per_second"] == pytest.approx(1 / (slowest + exchange))
    for fault in body["faults"]:
        assert fault["sentence"] and fault["command"]


def test_plan_of_what_does_not_fit_says_so_and_is_exit_1(model_path):
    result = plan(model_path, "--context", "16777216", "--sequences", "512")
    assert result.returncode == 1, result.stdout
    assert "IT DOES NOT FIT" in result.stdout


def test_plan_tells_the_devices_that_are_chosen_and_why(model_path):
    arguments = ("--no-measure", "--devices", "cpu")
    body = json.loads(plan(model_path, *arguments, "--json").stdout)
    assert body["devices"]["nodes"] == [node["id"] for node in body["nodes"]]
    assert body["devices"]["reason"]
    assert bool(body["gpus"]) != bool(body["no_gpus"])
    assert {rank["gpu"] for rank in body["ranks"]} == {None}
    text = plan(model_path, *arguments).stdout
    names = ", ".join(f"node{node['id']}" for node in body["nodes"])
    assert f"devices {names}: {body['devices']['reason']}" in text
    assert f"no GPU: {body['no_gpus']}" in text or "  gpu0: " in text


def test_ranks_are_on_the_nodes_that_are_named(model_path):
    nodes = json.loads(plan(model_path, "--no-measure", "--json").stdout)["nodes"]
    last = [node["id"] for node in nodes if node["processors"] and node["memory_allowed"]][-1]
    result = plan(model_path, "--no-measure", "--json", "--devices", f"node{last}", "--ranks", "2")
    body = json.loads(result.stdout)
    assert body["devices"]["nodes"] == [last]
    assert f"--devices node{last}" in body["devices"]["reason"]
    assert {rank["node"] for rank in body["ranks"]} == {last}
    result = run_program("generate", "--model", model_path, "--devices", f"node{last}",
                         "--max-tokens", "2", "--prompt", "Once")
    assert result.returncode == 0, result.stderr


def test_devices_that_cannot_compute_are_refused_with_the_reason(model_path):
    body = json.loads(plan(model_path, "--no-measure", "--json").stdout)
    there = ", ".join(f"node{node['id']}" for node in body["nodes"])
    for command in (["plan"], ["generate", "--prompt", "Once"], ["serve"]):
        assert f"there is no node99: this machine has {there}" in refusal(
            *command, "--model", model_path, "--devices", "node99")
    if body["no_gpus"]:
        assert body["devices"]["reason"] == f"there is no GPU: {body['no_gpus']}"
        # A build that asks for GPUs may find some the next time.
        code = 2 if "without CUDA" in body["no_gpus"] else 1
        for devices in ("gpu", "all", "gpu0", "node0,gpu0"):
            assert body["no_gpus"] in refusal(
                "plan", "--model", model_path, "--devices", devices, code=code)
    else:
        assert "strategy gather is for ranks that share memory" in refusal(
            "plan", "--model", model_path, "--devices", "all", "--strategy", "gather")
    assert "give auto, cpu, gpu, all, or" in refusal(
        "plan", "--model", model_path, environment={"LOCKSTEP_DEVICES": "tpu"})


def test_plan_without_a_model_is_exit_2():
    result = run_program("plan")
    assert result.returncode == 2
    assert "no model was given" in result.stderr


def test_bench_machine_measures_all_pairs_of_nodes_barriers_exchanges_and_a_file(tmp_path):
    path = tmp_path / "some"
    path.write_bytes(bytes(3_000_001))
    result = run_program("bench-machine", "--size-mib", "64", "--seconds", "0", "--file", path,
                         "--json")
    assert result.returncode == 0, result.stderr
    body = json.loads(result.stdout)
    nodes = body["nodes"]
    assert [(entry["from_node"], entry["to_node"]) for entry in body["paths"]] == [
        (a["id"], b["id"]) for a in nodes if a["processors"] for b in nodes if b["has_memory"]]
    for entry in body["paths"]:
        for name, value in entry.items():
            if name.endswith(("_per_second", "_seconds")):
                assert value > 0, name
    copies = [(entry["from_node"], entry["to_node"], entry["cores_of_node"])
              for entry in body["node_copies"]]
    with_memory = [node["id"] for node in nodes if node["has_memory"]]
    assert copies and len(copies) == len(set(copies))
    assert {copy[:2] for copy in copies} == {(a, b) for a in with_memory for b in with_memory}
    assert all(by in (a, b) for a, b, by in copies)
    assert all(entry["copy_bytes_per_second"] > 0 for entry in body["node_copies"])
    if body["rank_count"] > 0:
        assert body["rank_count"] >= 2
        sizes = {name: [entry["bytes"] for entry in body["collectives"] if entry["name"] == name]
                 for name in ("all_gather", "all_reduce")}
        assert sizes["all_gather"] == sizes["all_reduce"]
        assert sizes["all_gather"][0] == 1024 and sizes["all_gather"][-1] == 16 << 20
        assert body["barriers"][-1]["node"] is None
    for entry in body["barriers"] + body["collectives"]:
        assert entry["seconds"] > 0
    assert body["arithmetic"][0]["isa"] == "scalar"
    for entry in body["arithmetic"]:
        assert entry["operation"]
        assert entry["operations_per_second"] > 0 and entry["one_core_operations_per_second"] > 0
    assert bool(body["gpus"]) != bool(body["no_gpus"])
    for entry in body["gpus"] + body["gpu_paths"]:
        for name, value in entry.items():
            if name == "bytes_per_second_by_clock" and value is None:
                continue  # a GPU need not say
            if name.endswith(("_seconds", "_per_second")) or "bytes" in name:
                assert entry["failure"] or value > 0, name
    (read,) = body["files"]
    assert read["bytes"] == 3_000_001 and read["bytes_per_second"] > 0


def test_bench_machine_can_leave_out_exchanges():
    options = ("--size-mib", "64", "--seconds", "0", "--no-exchanges")
    body = json.loads(run_program("bench-machine", *options, "--json").stdout)
    assert body["paths"] and body["arithmetic"]
    assert body["barriers"] == [] and body["collectives"] == []
    assert "barrier" not in run_program("bench-machine", *options).stdout


def test_bench_machine_prints_tables(model_path):
    result = run_program("bench-machine", "--size-mib", "64", "--seconds", "0")
    assert result.returncode == 0, result.stderr
    for part in ("GB/s", "latency", "Gop/s", "f32 multiply", "GPU", "barrier",
                 "copies from node to node"):
        assert part in result.stdout, part
    no_gpus = json.loads(run_program("plan", "--model", model_path, "--no-measure",
                                     "--json").stdout)["no_gpus"]
    assert (f"\nno GPU: {no_gpus}\n" in result.stdout) == bool(no_gpus)


def test_generate_gives_the_same_text_on_any_ranks(model_path):
    def text(*options):
        result = run_program("generate", "--model", model_path, "--prompt", "Once", "--max-tokens",
                             "40", "--seed", "5", *options)
        assert result.returncode == 0, result.stderr
        return result.stdout

    alone = text("--ranks", "1")
    assert text("--ranks", "2") == alone
    assert text("--ranks", "3", "--shares", "5:2:1", "--workers", "2") == alone


def test_shares_must_be_one_per_rank(model_path):
    result = run_program("generate", "--model", model_path, "--prompt", "x", "--ranks", "2",
                         "--shares", "1:2:3")
    assert result.returncode == 2
    assert "shares" in result.stderr
