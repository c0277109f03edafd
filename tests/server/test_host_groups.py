"""Several daemons that compute one model together, as their clients and their operators see them."""

import concurrent.futures
import contextlib
import ctypes.util
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import socket
import subprocess

import pytest
import requests

from conftest import (DEMO, FIXTURES, PATIENCE_SECONDS, PROGRAM, Daemon, clean_environment,
                      free_addresses, run_program, wait_until)

# Sampled, with log-probabilities; several at once have other neighbours on their way.
REQUESTS = [{"prompt": prompt, "max_tokens": tokens, "temperature": 0.8, "seed": seed,
             "logprobs": 3, "ignore_eos": True}
            for seed, (prompt, tokens) in enumerate([("Once upon a time", 40), ("The dog", 25),
                                                     ("word " * 150, 12), ("A", 1)])]


def answer(daemon, request):
    response = daemon.post("/v1/completions", request)
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def answers(daemon):
    with concurrent.futures.ThreadPoolExecutor(len(REQUESTS)) as clients:
        return list(clients.map(lambda request: answer(daemon, request), REQUESTS))


class Group:
    """Daemons on addresses of this machine; a host listens for clients once all are there."""

    def __init__(self, count, *options, model=DEMO):
        self.addresses = free_addresses(count)
        self.options = options
        self.model = model
        self.hosts = [None] * count

    def start(self, *indices, options=(), environment=None):
        def start_one(index):
            self.hosts[index] = Daemon(
                self.model, "--hosts", ",".join(self.addresses), "--host-index", str(index),
                "--workers", "1", "--context", "512", *self.options, *options,
                environment=environment)
        with concurrent.futures.ThreadPoolExecutor(len(self.hosts)) as starters:
            list(starters.map(start_one, indices or range(len(self.hosts))))
        return self

    @property
    def leader(self):
        return self.hosts[0]

    def wait_until_ready(self):
        for host in self.hosts:
            host.wait_until_ready()
        return self

    def stop(self):
        for host in self.hosts:
            if host is not None and host.process.poll() is None:
                host.process.kill()
                host.process.wait()


@pytest.fixture
def group():
    groups = []

    def make(*arguments, **more):
        groups.append(Group(*arguments, **more))
        return groups[-1]
    yield make
    for one in groups:
        one.stop()


@pytest.fixture(scope="module")
def expected():
    """One host's answers."""
    alone = Daemon(DEMO, "--workers", "1", "--context", "512").wait_until_ready()
    found = answers(alone)
    alone.stop()
    return found


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_text(secrets.token_hex(32) + "\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("count", [2, 3, 4])
def test_answers_are_those_of_one_host(group, expected, secret, count):
    hosts = group(count, "--hosts-secret", str(secret), "--host-seconds", "60").start()
    hosts.wait_until_ready()
    assert answers(hosts.leader) == expected
    assert answers(hosts.leader) == expected  # now prefixes are known
    ranks = [host.metric("lockstep_rank_info", rank=str(index))
             for index, host in enumerate(hosts.hosts)]
    assert ranks == [1] * count
    for host in hosts.hosts:
        assert host.metric("lockstep_hosts") == count
        assert host.metric("lockstep_hosts_together") == 1
        assert host.metric("lockstep_host_exchange_bytes_total") > 0
        assert host.metric("lockstep_host_exchange_seconds_total") > 0
    weights = [host.metric("lockstep_memory_bytes", kind="weights") for host in hosts.hosts]
    assert max(weights) < 1.1 * sum(weights) / count  # each has its own slice


@pytest.mark.parametrize("model, options", [
    (DEMO, ("--draft-model", DEMO, "--speculate", "draft")),
    (FIXTURES / "predicting/glm4moe-norms.gguf", ("--speculate", "mtp")),
    (FIXTURES / "eagle/llama.gguf",
     ("--draft-model", FIXTURES / "eagle/llama-words-eagle.gguf", "--speculate", "eagle3")),
    (FIXTURES / "families/gemma4.gguf",
     ("--draft-model", FIXTURES / "assistants/gemma4-assistant.gguf", "--speculate", "mtp"))])
def test_a_model_that_drafts_changes_no_answer_and_lies_where_the_hosts_are_led(
        group, model, options):
    asked = {"prompt": [5, 17, 80, 3] * 9, "max_tokens": 40, "temperature": 0.8, "seed": 11,
             "logprobs": 3, "ignore_eos": True}
    alone = Daemon(model, "--workers", "1", "--context", "512").wait_until_ready()
    plain = answer(alone, {**asked, "speculation": False})
    alone.stop()
    hosts = group(3, *options, "--draft-tokens", "3", "--host-seconds", "60", model=model).start()
    leader, *followers = hosts.wait_until_ready().hosts
    assert answer(leader, asked) == plain
    assert answer(leader, {**asked, "speculation": False}) == plain
    assert answer(leader, asked) == plain  # now prefixes are known
    assert leader.metric("lockstep_drafted_tokens_total", drafter=options[-1], position="0") > 10
    assert leader.metric("lockstep_draft_passes_seconds_total") > 0
    assert [host.metric("lockstep_draft_passes_seconds_total") for host in followers] == [0, 0]
    weights = [host.metric("lockstep_memory_bytes", kind="weights") for host in hosts.hosts]
    assert weights[0] > 1.2 * max(weights[1:])


def test_a_host_without_the_file_that_reads_the_models_rows_is_refused_in_words(tmp_path):
    drafts = [FIXTURES / "eagle/llama-words-eagle.gguf", tmp_path / "absent.gguf"]
    addresses = ",".join(free_addresses(2))

    def serve(index):
        return run_program("serve", "--port", "0", "--model", FIXTURES / "eagle/llama.gguf",
                           "--hosts", addresses, "--host-index", str(index), "--workers", "1",
                           "--context", "512", "--speculate", "eagle3", "--draft-model", drafts[index])
    with concurrent.futures.ThreadPoolExecutor(2) as starters:
        leader, follower = starters.map(serve, range(2))
    assert [leader.returncode, follower.returncode] == [1, 1]
    assert "rows kept for the draft model is" in leader.stderr
    assert f"the draft model {drafts[1]} is not here" in follower.stderr


class Launched(Daemon):
    """Hosts that mpirun has started, each a process of its; requests go to the leader."""

    def __init__(self, count, *options, mpirun=()):
        leader, = free_addresses(1)
        super().__init__(
            DEMO, "--leader", leader, "--insecure-hosts", "true", "--workers", "1", "--context", "512",
            "--host-seconds", "60", *options,
            launcher=("mpirun", "--oversubscribe", "--bind-to", "none", "--tag-output",
                      "-n", str(count), *mpirun),
            environment={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
        urls = []
        wait_until(lambda: urls.extend(self.urls_of(0)) or urls)
        self.url = urls[0]
        self.wait_until_ready()

    def urls_of(self, index):
        found = [re.match(rf"\[\d+,{index}\]<stderr>:.*listening on (http://[^\s\"]+)", line)
                 for line in self.log]
        return [one[1] for one in found if one]

    def processes(self):
        children = pathlib.Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return " ".join(path.read_text() for path in children).split()

    def host(self, index):
        """Its process id."""
        for process in self.processes():
            environment = pathlib.Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            if b"OMPI_COMM_WORLD_RANK=%d" % index in environment:
                return int(process)
        raise AssertionError(f"no host {index}")

    def stop(self):
        """mpirun itself does not always end when it is asked to."""
        for process in self.processes():
            os.kill(int(process), signal.SIGKILL)
        self.process.kill()
        self.process.wait()


@pytest.fixture
def launched():
    if shutil.which("mpirun") is None:
        pytest.skip("without MPI: there is no mpirun")
    started = []

    def start(*arguments, **more):
        started.append(Launched(*arguments, **more))
        return started[-1]
    yield start
    for one in started:
        one.stop()


@pytest.mark.parametrize("count, ways", [(2, "all"), (3, "tcp,self"), (4, "tcp,self")])
def test_by_ucx_answers_are_those_of_one_host(group, expected, count, ways):
    if b"UCX_MEM_MMAP_HOOK_MODE" not in PROGRAM.read_bytes():  # a program that has UCX sets it
        pytest.skip("without UCX: the program was built where its header is not")
    if ctypes.util.find_library("ucp") is None:
        pytest.skip("without UCX: there is no libucp")
    hosts = group(count, "--hosts-transport", "ucx").start(environment={"UCX_TLS": ways})
    hosts.wait_until_ready()
    assert answers(hosts.leader) == expected
    assert answers(hosts.leader) == expected  # now prefixes are known
    assert hosts.leader.metric("lockstep_host_exchange_bytes_total") > 0


BY_MPI = ("--hosts-transport", "mpi")


@pytest.mark.parametrize("count, transport", [(2, BY_MPI), (3, BY_MPI), (2, ())])
def test_hosts_that_mpirun_starts_answer_as_one(launched, expected, count, transport):
    hosts = launched(count, *transport)
    assert hosts.metric("lockstep_hosts") == count
    assert answers(hosts) == expected
    assert hosts.metric("lockstep_host_exchange_bytes_total") > 0


def maps_of(process):
    return pathlib.Path(f"/proc/{process}/maps").read_text()


def test_mpi_is_loaded_where_it_is_asked_for_alone(launched):
    assert "libmpi" in maps_of(launched(2, *BY_MPI).host(1))
    assert "libmpi" not in maps_of(launched(2).host(1))


def test_by_mpi_a_follower_that_is_killed_ends_the_leader_with_words(launched):
    hosts = launched(2, *BY_MPI, mpirun=("--enable-recovery",))
    stream = requests.post(hosts.url + "/v1/completions", stream=True, timeout=PATIENCE_SECONDS,
                           json={**REQUESTS[0], "max_tokens": 450, "stream": True})
    lines = stream.iter_lines()
    next(lines)
    os.kill(hosts.host(1), signal.SIGKILL)
    assert "error" in b"\n".join(lines).decode()
    hosts.process.wait(PATIENCE_SECONDS)
    wait_until(lambda: any("host 1" in line and "critical" in line for line in hosts.log))


def test_by_mpi_there_is_no_second_group(launched):
    hosts = launched(2, *BY_MPI, mpirun=("--enable-recovery",))
    os.kill(hosts.host(0), signal.SIGKILL)
    hosts.process.wait(PATIENCE_SECONDS)
    wait_until(lambda: any("hosts that exchange by mpi form one group" in line
                           for line in hosts.log))


def test_without_mpirun_mpi_is_refused(group):
    hosts = group(2, *BY_MPI, "--insecure-hosts", "true")
    for host in hosts.start().hosts:
        assert host.process.wait(PATIENCE_SECONDS) != 0
        wait_until(lambda: any("not started by the same mpirun" in line for line in host.log))


def test_embeddings_are_those_of_one_host(group):
    """Hidden rows of more tokens than are read at once, of which each host has some columns."""
    body = {"input": ["word " * 300, "A", "Once upon a time"], "encoding_format": "float"}
    options = ("--workers", "1", "--context", "512")
    alone = Daemon(DEMO, *options).wait_until_ready()
    found = alone.post("/v1/embeddings", body).json()["data"]
    alone.stop()
    hosts = group(3, "--host-seconds", "60").start().wait_until_ready()
    assert hosts.leader.post("/v1/embeddings", body).json()["data"] == found
    assert len(found) == 3


def test_uneven_shares_and_several_ranks_on_a_host(group, expected):
    hosts = group(2, "--host-seconds", "60")
    hosts.hosts = [None, None]
    with concurrent.futures.ThreadPoolExecutor(2) as starters:
        first = starters.submit(hosts.start, 0, options=("--ranks", "2", "--shares", "2:1"))
        second = starters.submit(hosts.start, 1, options=("--shares", "3"))
        first.result()
        second.result()
    hosts.wait_until_ready()
    assert answers(hosts.leader) == expected


def test_a_follower_is_well_and_sends_clients_to_the_leader(group):
    hosts = group(2, "--host-seconds", "60").start().wait_until_ready()
    follower = hosts.hosts[1]
    for path, body in [("/v1/completions", REQUESTS[0]),
                       ("/v1/chat/completions",
                        {"messages": [{"role": "user", "content": "hi"}]})]:
        refused = follower.post(path, body)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "follows_another_host"
        assert hosts.addresses[0] in refused.json()["error"]["message"]
    assert follower.get("/health/live").status_code == 200


def test_a_follower_that_is_killed_ends_the_leader_with_words(group):
    hosts = group(2).start().wait_until_ready()
    stream = requests.post(hosts.leader.url + "/v1/completions", stream=True,
                           timeout=PATIENCE_SECONDS,
                           json={**REQUESTS[0], "max_tokens": 450, "stream": True})
    lines = stream.iter_lines()
    next(lines)
    hosts.hosts[1].process.kill()
    rest = b"\n".join(lines).decode()
    assert "error" in rest
    assert hosts.leader.process.wait(PATIENCE_SECONDS) == 1
    assert any("host 1" in line and "critical" in line for line in hosts.leader.log)


def test_an_idle_leader_notices_a_lost_follower(group):
    hosts = group(2).start().wait_until_ready()
    hosts.hosts[1].process.kill()
    assert hosts.leader.process.wait(PATIENCE_SECONDS) == 1
    assert any("host 1" in line and "critical" in line for line in hosts.leader.log)


def test_a_stopped_follower_counts_as_lost(group):
    hosts = group(2).start().wait_until_ready()
    hosts.hosts[1].process.send_signal(signal.SIGSTOP)
    refused = hosts.leader.post("/v1/completions", REQUESTS[0])
    assert refused.status_code in (500, 503)
    assert "host 1" in refused.json()["error"]["message"]
    assert hosts.leader.process.wait(PATIENCE_SECONDS) == 1


def test_followers_keep_their_weights_for_the_next_leader(group, expected):
    hosts = group(3, "--host-seconds", "30").start().wait_until_ready()
    hosts.leader.process.kill()
    for follower in hosts.hosts[1:]:
        wait_until(lambda daemon=follower: daemon.get("/health/ready").status_code == 503)
        assert follower.get("/health/ready").json()["status"] == "hosts_lost"
        assert follower.get("/health/live").status_code == 200
        assert follower.metric("lockstep_hosts_together") == 0
    hosts.start(0).wait_until_ready()
    assert answers(hosts.leader) == expected
    for follower in hosts.hosts[1:]:
        assert sum("MiB of weights in" in line for line in follower.log) == 1


def test_a_follower_that_is_to_stop_gives_the_leader_time_and_goes(group):
    hosts = group(2, "--host-seconds", "60", "--drain-seconds", "1").start().wait_until_ready()
    assert hosts.hosts[1].stop() == 0
    assert hosts.leader.process.wait(PATIENCE_SECONDS) == 1
    assert any("host 1" in line and "stopping" in line for line in hosts.leader.log)


def test_all_are_stopped_at_once_and_what_runs_is_answered(group):
    hosts = group(2, "--host-seconds", "60").start().wait_until_ready()
    with concurrent.futures.ThreadPoolExecutor(1) as clients:
        running = clients.submit(answer, hosts.leader, {**REQUESTS[0], "max_tokens": 400})
        wait_until(lambda: hosts.leader.metric("lockstep_requests_running") == 1)
        for host in hosts.hosts:
            host.process.send_signal(signal.SIGTERM)
        assert running.result()[0]["finish_reason"] == "length"
    assert [host.process.wait(PATIENCE_SECONDS) for host in hosts.hosts] == [0, 0]


def test_a_follower_that_waits_for_a_leader_can_be_stopped(group):
    hosts = group(2, "--host-seconds", "60", "--drain-seconds", "1").start().wait_until_ready()
    hosts.leader.process.kill()
    wait_until(lambda: hosts.hosts[1].metric("lockstep_hosts_together") == 0)
    assert hosts.hosts[1].stop() == 0


def start_waiting(*options, command=("serve", "--port", "0")):
    """A host whose others do not come; it has said that it waits."""
    process = subprocess.Popen(
        [str(PROGRAM), *command, "--model", str(DEMO), *options],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=clean_environment())
    for line in process.stderr:
        if "Waits for" in line:
            return process
    raise AssertionError(process.wait())


def test_a_waiting_host_can_be_stopped():
    addresses = ",".join(free_addresses(2))
    for index in "01":
        process = start_waiting("--hosts", addresses, "--host-index", index)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
        process.stderr.close()


@pytest.mark.parametrize("count", [2, 3])
def test_a_plan_of_several_hosts_is_the_same_on_all(count):
    addresses = ",".join(free_addresses(count))

    def plan(index):
        return run_program("plan", "--model", str(DEMO), "--hosts", addresses, "--host-index",
                           str(index), "--workers", "1", "--context", "512", "--json")
    with concurrent.futures.ThreadPoolExecutor(count) as starters:
        ended = list(starters.map(plan, range(count)))
    plans = [json.loads(one.stdout) for one in ended]
    assert plans == [plans[0]] * count
    hosts = plans[0]["hosts"]
    assert [host["ranks"] for host in hosts] == [1] * count
    assert [address in host["name"] for address, host in zip(addresses.split(","), hosts)] \
        == [True] * count
    assert all(host["buffer_bytes"] > plans[0]["exchange_bytes"] for host in hosts)
    alone = run_program("plan", "--model", str(DEMO), "--workers", "1", "--context", "512",
                        "--json")
    weights = json.loads(alone.stdout)["model_weight_bytes"]
    # More hosts than keys' and values' heads can be dealt out to: some of them are on two.
    assert weights <= sum(host["weight_bytes"] for host in hosts) < 1.2 * weights
    seconds = plans[0]["read_seconds"] + (plans[0]["exchanges_per_token"]
                                          * plans[0]["exchange_seconds"])
    assert plans[0]["tokens_per_second"] == pytest.approx(1 / seconds)
    assert plans[0]["exchange_seconds"] > 0 and plans[0]["link_bytes_per_second"] > 0
    assert "host " in plans[0]["verdict"]


def test_a_plan_of_several_hosts_counts_no_users(tmp_path):
    refused = run_program("plan", "--model", str(DEMO), "--hosts", "127.0.0.1:7,127.0.0.1:8",
                          "--host-index", "0", "--users", "5", "--costs", str(tmp_path / "none"))
    assert refused.returncode == 2 and "--users" in refused.stderr


MESSAGES = 100  # a host that waits sends one a second


def test_a_service_manager_hears_whom_a_host_waits_for(tmp_path):
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(PATIENCE_SECONDS)

        def hear(words, ready=False):
            """The next message with these words; until then none that it is ready."""
            for _ in range(MESSAGES):
                lines = manager.recv(65536).decode().split("\n")
                told = dict(line.split("=", 1) for line in lines if line)
                if words in told.get("STATUS", ""):
                    return told
                assert ready or "READY" not in told
            pytest.fail(f"not told in {MESSAGES} messages: {words}")
        hosts = free_addresses(2)
        common = ("--hosts", ",".join(hosts), "--workers", "1", "--context", "512",
                  "--host-seconds", "30")
        with concurrent.futures.ThreadPoolExecutor(1) as starter:
            leader = starter.submit(Daemon, DEMO, *common, "--host-index", "0",
                                    environment={"NOTIFY_SOCKET": address})
            told = hear("Waits for host 1 of 2 hosts")
            assert int(told["EXTEND_TIMEOUT_USEC"]) >= 10_000_000
            hear("Waits for host 1 of 2 hosts")  # and again, as long as it does
            follower = Daemon(DEMO, *common, "--host-index", "1")
            leader = leader.result()
        try:
            assert hear("Serving", ready=True)["READY"] == "1"
            leader.wait_until_ready()
        finally:
            for host in (follower, leader):
                host.process.kill()
                host.process.wait()


def test_a_follower_tells_its_service_manager_that_it_waits_for_a_leader(group, tmp_path):
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(PATIENCE_SECONDS)
        hosts = group(2, "--host-seconds", "60").start(environment={"NOTIFY_SOCKET": address})
        hosts.wait_until_ready()
        manager.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:  # they have waited for one another before
                manager.recv(65536)
        manager.settimeout(PATIENCE_SECONDS)
        hosts.leader.process.kill()
        awaited = f"STATUS=Waits for host 0 ({hosts.addresses[0]})"
        assert any(awaited in manager.recv(65536).decode() for _ in range(MESSAGES))


def test_generate_can_be_stopped_while_it_waits():
    process = start_waiting("--hosts", ",".join(free_addresses(2)), "--host-index", "0",
                            command=("generate", "--prompt", "A", "--log-level", "info"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_SECONDS) == 0
    process.stderr.close()


@pytest.mark.parametrize("more, code", [((), 0), (("--cache-memory", "16"), 2),
                                        (("--host-index", "9"), 2)])
def test_a_configuration_is_checked_without_the_other_hosts(more, code):
    index = () if "--host-index" in more else ("--host-index", "0")
    checked = run_program(
        "serve", "--check-config", "--model", str(DEMO), "--hosts", ",".join(free_addresses(2)),
        *index, *more)
    assert checked.returncode == code, checked.stderr
    assert "Waits for" not in checked.stderr


def test_evaluate_computes_on_one_host_and_offers_no_other():
    assert "--hosts" in run_program("bench", "--help").stdout
    assert "--host" not in run_program("evaluate", "--help").stdout


def test_a_host_with_another_secret_is_turned_away_and_the_right_one_is_not(
        group, expected, secret, tmp_path):
    wrong = tmp_path / "wrong"
    wrong.write_text(secrets.token_hex(32))
    wrong.chmod(0o600)
    hosts = group(2, "--host-seconds", "30")
    with concurrent.futures.ThreadPoolExecutor(1) as starter:
        leader = starter.submit(hosts.start, 0, options=("--hosts-secret", str(secret)))
        refused = run_program(
            "serve", "--model", str(DEMO), "--port", "0", "--hosts", ",".join(hosts.addresses),
            "--host-index", "1", "--hosts-secret", str(wrong))
        assert refused.returncode != 0
        assert "secret" in refused.stderr
        hosts.start(1, options=("--hosts-secret", str(secret)))
        leader.result()
    hosts.wait_until_ready()
    assert answers(hosts.leader) == expected


def test_hosts_with_other_options_refuse_one_another(tmp_path):
    addresses = ",".join(free_addresses(2))
    common = ("--model", str(DEMO), "--port", "0", "--hosts", addresses, "--workers", "1")
    with concurrent.futures.ThreadPoolExecutor(2) as starters:
        ended = list(starters.map(
            lambda more: run_program("serve", *common, *more),
            [("--host-index", "0", "--context", "512"), ("--host-index", "1", "--context", "256")]))
    for one in ended:
        assert one.returncode == 1
        assert "context" in one.stderr and "256" in one.stderr and "512" in one.stderr


@pytest.mark.parametrize("change, words", [
    (lambda data: data + bytes(64), "bytes"),
    # Other weights behind the same header.
    (lambda data: data[:-(len(data) // 4)] + bytes(len(data) // 4), "samples_sha256"),
])
def test_another_file_is_refused(tmp_path, change, words):
    other = tmp_path / "other.gguf"
    other.write_bytes(change(DEMO.read_bytes()))
    addresses = ",".join(free_addresses(2))
    common = ("--port", "0", "--hosts", addresses, "--workers", "1", "--context", "512")
    with concurrent.futures.ThreadPoolExecutor(2) as starters:
        ended = list(starters.map(
            lambda more: run_program("serve", *common, *more),
            [("--host-index", "0", "--model", str(DEMO)),
             ("--host-index", "1", "--model", str(other))]))
    for one in ended:
        assert one.returncode == 1
        assert words in one.stderr
        assert str(DEMO.stat().st_size) in one.stderr and str(other.stat().st_size) in one.stderr


@pytest.mark.parametrize("options, words", [
    (("--hosts", "127.0.0.1:7,127.0.0.1:8"), "--host-index"),
    (("--hosts", "127.0.0.1:7,127.0.0.1:8", "--host-index", "2"), "0 to 1"),
    (("--hosts", "a.example:7,b.example:7", "--host-index", "0"), "--hosts-secret"),
    (("--hosts", "a.example:7,b.example:7", "--host-index", "0", "--insecure-hosts", "true",
      "--hosts-transport", "nccl"), "joins GPUs"),
    (("--hosts", "127.0.0.1:7,127.0.0.1:8", "--host-count", "3", "--host-index", "0"),
     "--host-count"),
    (("--host-count", "2", "--host-index", "0"), "--leader"),
    (("--hosts", "127.0.0.1:7,127.0.0.1:8", "--host-index", "0", "--cache-memory", "16"),
     "--cache-memory"),
    (("--hosts", "127.0.0.1:7,127.0.0.1:8", "--host-index", "0", "--strategy", "reduce",
      "--ranks", "2"), "--strategy gather"),
    (("--hosts", "127.0.0.1:7,127.0.0.1:8", "--host-index", "0", "--hosts-secret", "/nowhere"),
     "/nowhere"),
    (("--hosts", "127.0.0.1,127.0.0.1:8", "--host-index", "0"), "127.0.0.1"),
])
def test_what_does_not_fit_is_refused_in_words(options, words):
    refused = run_program("serve", "--model", str(DEMO), "--port", "0", *options)
    assert refused.returncode == 2, refused.stderr
    assert words in refused.stderr


def test_a_leader_worker_set_says_who_is_who(expected):
    address = free_addresses(1)[0]
    options = ("--workers", "1", "--context", "512", "--leader", address, "--host-seconds", "60")
    def start(index):
        return Daemon(DEMO, *options, environment={
            "LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": str(index),
            "LWS_LEADER_ADDRESS": "127.0.0.1"})
    with concurrent.futures.ThreadPoolExecutor(2) as starters:
        leader, follower = starters.map(start, [0, 1])
    try:
        leader.wait_until_ready()
        assert answers(leader) == expected
        assert follower.metric("lockstep_rank_info", rank="1") == 1
    finally:
        follower.process.kill()
        leader.process.kill()
