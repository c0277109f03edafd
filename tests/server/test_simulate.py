"""lockstepd simulate: what it says, and what it refuses."""

import json
import re

import pytest

from conftest import DEMO, run_program

# A pass takes 20 ms, 2 ms more for each generated token and 1 ms for each prompted one.
COSTS = {"batch_tokens": 512, "results": [
    {"prompt_tokens": prompt, "generated_tokens": generated, "depth_tokens": 0,
     "sequences": sequences, "tokens_per_second": tokens / seconds}
    for prompt, generated, sequences, tokens, seconds in (
        (64, 0, 1, 64, 0.02 + 0.001 * 64), (512, 0, 1, 512, 0.02 + 0.001 * 512),
        (0, 10, 1, 10, 10 * 0.022), (0, 10, 8, 80, 10 * 0.036))]}


@pytest.fixture
def costs_path(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(COSTS))
    return path


def simulate(costs, *options):
    result = run_program("simulate", "--costs", costs, *options, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_costs_and_latencies_are_those_of_the_file(costs_path, tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"arrival": 0, "prompt": 20, "answer": 5}\n')
    body = simulate(costs_path, "--trace", trace)
    generation = body["costs"]["generation"]
    assert [each["tokens"] for each in generation] == [1, 8]
    assert [each["seconds"] for each in generation] == pytest.approx([0.022, 0.036], rel=0.01)
    assert body["costs"]["worst_deviation"] < 0.001
    assert (body["requests"], body["refused"], body["good"]) == (1, 0, 1)
    assert body["first_token_seconds"]["p50"] == pytest.approx(0.04, rel=0.02)
    assert body["mean_gap_seconds"]["p99"] == pytest.approx(0.022, rel=0.01)


def test_a_made_load_is_the_same_from_the_same_seed(costs_path):
    load = ("--rate", "5", "--seconds", "10", "--prompt", "50-100", "--answer", "10")
    one = simulate(costs_path, *load)
    assert simulate(costs_path, *load) == one
    assert simulate(costs_path, *load, "--seed", "2") != one


def test_the_fewest_replicas_that_suffice_are_fewer_with_more_time(costs_path):
    load = ("--rate", "30", "--seconds", "20", "--replicas", "auto")
    hurried = simulate(costs_path, *load, "--first-limit", "0.8", "--token-limit", "0.2")
    patient = simulate(costs_path, *load, "--first-limit", "20", "--token-limit", "0.5")
    assert 1 < patient["replicas"] < hurried["replicas"]
    assert hurried["good"] >= 0.99 * hurried["requests"]


def test_options_of_the_daemon_are_those_of_its_replicas(costs_path):
    load = ("--rate", "20", "--seconds", "10")
    few = simulate(costs_path, *load, "--sequences", "1", "--waiting-requests", "2")
    many = simulate(costs_path, *load)
    assert few["refused"] > 0 and many["refused"] == 0


def test_people_read_the_same(costs_path):
    result = run_program("simulate", "--costs", costs_path)
    assert result.returncode == 0
    assert "a pass generates 1 in 22.00 ms, 8 in 36.00 ms" in result.stdout and "first token" in result.stdout


@pytest.mark.parametrize("arguments, message", [
    ((), "--costs is required"),
    (("--costs", "/nowhere"), "--costs: /nowhere cannot be read"),
    (("--costs", DEMO), "is not the output of `lockstepd bench --json`: it is not valid"),
])
def test_costs_that_cannot_be_used_are_named(arguments, message):
    result = run_program("simulate", *arguments)
    assert result.returncode == 2 and message in result.stderr and result.stdout == ""


@pytest.mark.parametrize("options, message", [
    (("--prompt", "0"), "--prompt: must be a number of tokens"),
    (("--answer", "9-3"), "--answer: must be a number of tokens"),
    (("--replicas", "0"), "--replicas: must be one number"),
    (("--replicas", "1,2"), "--replicas: must be one number"),
    (("--router", "random"), "--router"),
    (("--rate", "0"), "--rate"),
    (("--rate", "0.001", "--seconds", "1"), "raise --rate or --seconds"),
    (("--trace", "/nowhere"), "--trace: /nowhere cannot be read"),
    (("--replicas", "auto", "--first-limit", "0.001"), "raise --first-limit"),
])
def test_what_cannot_be_simulated_is_named(costs_path, options, message):
    result = run_program("simulate", "--costs", costs_path, *options)
    assert result.returncode == 2 and message in result.stderr and result.stdout == ""


def test_figures_of_0_and_too_few_of_them_are_refused(costs_path, tmp_path):
    path = tmp_path / "few.json"
    path.write_text(json.dumps({**COSTS, "results": COSTS["results"][1:]}))
    result = run_program("simulate", "--costs", path)
    assert result.returncode == 2 and "has 1 lengths of prompts" in result.stderr
    path.write_text(json.dumps({**COSTS, "results": [{**COSTS["results"][0],
                                                      "tokens_per_second": 0}]}))
    result = run_program("simulate", "--costs", path)
    assert result.returncode == 2 and "a figure in it is 0" in result.stderr


def plan(*options):
    result = run_program("plan", "--model", DEMO, "--no-measure", *options, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_plan_says_how_many_machines_so_many_users_take(costs_path):
    """As many as a simulation of their requests finds, with the plan's sequences and contexts."""
    asked = ("--costs", costs_path, "--user-seconds", "20", "--first-limit", "1")
    planned = plan(*asked, "--users", "500", "--seconds", "60")
    users = planned["users"]
    pages = planned["sequences"] * (planned["context_tokens"] // 64)
    simulated = simulate(costs_path, "--rate", "25", "--seconds", "60", "--skip", "10",
                         "--first-limit", "1", "--replicas", "auto", "--kv-pages", pages,
                         "--sequences", planned["sequences"])
    assert users["machines"] == simulated["replicas"] > 1
    assert users["requests"] == simulated["requests"]
    assert users["good_part"] == simulated["good"] / simulated["requests"] >= 0.99
    assert users["good_part_with_one_less"] < 0.99
    assert users["requests_per_second"] == 25
    few = plan(*asked, "--users", "20", "--seconds", "60")["users"]
    assert few["machines"] == 1 and few["good_part_with_one_less"] is None
    assert "users" not in plan()


def test_people_read_how_many_machines(costs_path):
    result = run_program("plan", "--model", DEMO, "--no-measure", "--users", "500", "--seconds", "30",
                         "--costs", costs_path)
    assert result.returncode == 0, result.stderr
    assert re.search(r"^500 users, a request of each in 60 s: 8\.33 per second", result.stdout, re.M)
    assert re.search(r"^  \d+ machines? like this one: ", result.stdout, re.M)


@pytest.mark.parametrize("options, message", [
    (("--users", "5"), "--users requires --costs"),
    (("--users", "0", "--costs", "COSTS"), "--users"),
    (("--user-seconds", "5"), "--user-seconds requires --users"),
    (("--users", "5", "--costs", "/nowhere"), "--costs: /nowhere cannot be read"),
    (("--users", "5", "--costs", "COSTS", "--prompt", "0"), "--prompt: must be a number of tokens"),
    (("--users", "1", "--costs", "COSTS", "--user-seconds", "1000000"), "raise --seconds"),
    (("--users", "50", "--costs", "COSTS", "--first-limit", "0.001"), "raise --first-limit"),
])
def test_users_that_cannot_be_planned_for_are_named(costs_path, options, message):
    given = [costs_path if option == "COSTS" else option for option in options]
    result = run_program("plan", "--model", DEMO, "--no-measure", *given)
    assert result.returncode == 2 and message in result.stderr and result.stdout == ""
