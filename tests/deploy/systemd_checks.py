"""Run by scripts/checks/test_systemd in a booted systemd with the units installed: each check begins
with everything stopped. Only what Python brings, since it runs on the bare system.

  systemd_checks.py guest|native [NAME...]
"""

import contextlib
import http.client
import json
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time
import traceback

PATIENCE_SECONDS = 120
UNIT = "lockstepd.service"
ADDRESS = ("127.0.0.1", 8080)
DROP_IN = pathlib.Path("/etc/systemd/system/lockstepd.service.d/check.conf")
CONFIGURATION = pathlib.Path("/etc/lockstep/lockstepd.json")
SECRETS = pathlib.Path("/run/lockstepd-secrets")
FIRST_KEY, SECOND_KEY = "sk-first-" + 24 * "1", "sk-second-" + 24 * "2"
VICTIM = pathlib.Path("/opt/victim/file")  # root's, and no business of the daemon's


def systemctl(*arguments, check=True):
    return subprocess.run(["systemctl", *arguments], check=check, capture_output=True, text=True)


def show(name, unit=UNIT):
    return systemctl("show", unit, "-P", name).stdout.strip()


def journal(unit=UNIT):
    return subprocess.run(["journalctl", "--no-pager", "-o", "cat", "-u", unit],
                          capture_output=True, text=True).stdout


def wait_until(condition, what):
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}: " + journal()[-2000:]
        time.sleep(0.05)


def ask(method, path, body=None, key=None):
    connection = http.client.HTTPConnection(*ADDRESS, timeout=PATIENCE_SECONDS)
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    connection.request(method, path, json.dumps(body) if body else None, headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def metric(name):
    text = ask("GET", "/metrics")[1]
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M))


def served_model():
    return json.loads(ask("GET", "/v1/models")[1])["data"][0]["id"]


def complete(tokens=8):
    status, text = ask("POST", "/v1/completions", {
        "model": served_model(), "prompt": "Once upon a time", "max_tokens": tokens,
        "ignore_eos": True})
    assert status == 200, text
    return json.loads(text)


@contextlib.contextmanager
def drop_in(text):
    DROP_IN.parent.mkdir(parents=True, exist_ok=True)
    DROP_IN.write_text("[Service]\n" + text)
    systemctl("daemon-reload")
    try:
        yield
    finally:
        DROP_IN.unlink()
        systemctl("daemon-reload")


def main_process():
    return int(show("MainPID"))


def from_proc(name):
    fields = dict(line.split(":", 1) for line in
                  pathlib.Path(f"/proc/{main_process()}/status").read_text().splitlines())
    return fields[name].split()


# The checks.

def check_start(kind):
    """`systemctl start` returns when the daemon serves, and not before."""
    systemctl("start", UNIT)
    assert show("ActiveState") == "active"
    assert ask("GET", "/health/ready")[0] == 200
    assert complete()["usage"]["completion_tokens"] == 8
    assert served_model() in show("StatusText"), show("StatusText")


def check_sandbox(kind):
    """It has no rights and misses none: memory is bound, files are read with io_uring."""
    systemctl("start", UNIT)
    assert int(from_proc("Uid")[0]) >= 61184  # a dynamic user
    assert from_proc("CapBnd") == from_proc("CapEff") == ["0000000000000000"]
    assert from_proc("NoNewPrivs") == ["1"] and from_proc("Seccomp") == ["2"]
    limits = pathlib.Path(f"/proc/{main_process()}/limits").read_text()
    if kind == "guest":
        assert re.search(r"Max locked memory +unlimited", limits), limits
    log = journal()
    assert "with io_uring" in log, log
    assert not re.search(r" (warn|warning|error|critical) |level=(warn|error|critical)", log), log
    assert metric("lockstep_rank_wrong_node_bytes") == 0
    group = int(from_proc("Gid")[0])
    for path, mode in ((SECRETS, 0o750), (SECRETS / "example", 0o440)):
        status = path.lstat()
        assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (0, group, mode), path
    assert (SECRETS / "example").read_text() == "secret\n"


def check_reload(kind):
    """SIGHUP, with fresh secrets, and nobody notices."""
    systemctl("start", UNIT)
    before = main_process()
    source = pathlib.Path("/etc/lockstep/secrets/example")
    source.write_text("fresh\n")
    systemctl("reload", UNIT)
    assert (SECRETS / "example").read_text() == "fresh\n"
    wait_until(lambda: metric("lockstep_config_last_reload_timestamp_seconds") > 0
               and metric("lockstep_config_last_reload_success") == 1, "the reload")
    assert main_process() == before and show("NRestarts") == "0"
    complete()
    source.write_text("secret\n")


def check_secrets(kind):
    """The daemon takes its keys from the copies, refuses a withdrawn one after a reload, and the
    copies go with it. A daemon that was taken over cannot turn them against root."""
    source = pathlib.Path("/etc/lockstep/secrets/keys.json")
    command = f"/usr/local/bin/lockstepd serve --config {CONFIGURATION}"
    source.write_text(json.dumps({"keys": [{"name": "first", "key": FIRST_KEY}]}))
    try:
        with drop_in(f"ExecStart=\nExecStart={command} --api-keys {SECRETS}/keys.json\n"):
            systemctl("start", UNIT)
            assert ask("GET", "/v1/models")[0] == 401
            assert ask("GET", "/v1/models", key=FIRST_KEY)[0] == 200
            attack()
            source.write_text(json.dumps({"keys": [{"name": "second", "key": SECOND_KEY}]}))
            systemctl("reload", UNIT)
            wait_until(lambda: ask("GET", "/v1/models", key=SECOND_KEY)[0] == 200, "the new key")
            assert ask("GET", "/v1/models", key=FIRST_KEY)[0] == 401
            assert VICTIM.read_text() == "root's\n" and VICTIM.stat().st_uid == 0
            assert VICTIM.parent.stat().st_uid == 0
            systemctl("stop", UNIT)
            assert not SECRETS.exists()
    finally:
        source.unlink()


def attack():
    """As the daemon's user, from within its view of the files: links where root may act."""
    VICTIM.parent.mkdir(exist_ok=True)
    VICTIM.write_text("root's\n")
    user, group = from_proc("Uid")[0], from_proc("Gid")[0]
    places = f"/run/lockstepd/secrets /run/lockstepd/keys.json {SECRETS}/planted {SECRETS}"
    told = subprocess.run(
        ["nsenter", "--mount", f"--target={main_process()}", "setpriv", f"--reuid={user}",
         f"--regid={group}", "--clear-groups", "sh", "-c",
         f"for place in {places}; do ln -sfT {VICTIM.parent} $place; echo $?; done"],
        capture_output=True, text=True)
    assert told.stdout.split() == ["0", "0", "1", "1"], told  # its own directory, and root's


def check_drain(kind):
    """On stop a request that runs ends as it should have, and new ones are refused."""
    systemctl("start", UNIT)
    connection = http.client.HTTPConnection(*ADDRESS, timeout=PATIENCE_SECONDS)
    # Emulated processors give some tokens a second.
    body = {"model": served_model(), "prompt": "Once upon a time",
            "max_tokens": 400 if kind == "native" else 48, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"Content-Type": "application/json"})
    stream = connection.getresponse()
    assert stream.status == 200
    first = stream.readline()
    assert first.startswith(b"data: ")
    stopping = threading.Thread(target=systemctl, args=("stop", UNIT))
    stopping.start()
    rest = stream.read().decode()
    stopping.join()
    assert rest.rstrip().endswith("data: [DONE]"), rest[-300:]
    assert '"finish_reason":"length"' in rest.replace(" ", ""), rest[-600:]
    assert show("Result") == "success" and show("ExecMainStatus") == "0"


def check_watchdog(kind):
    """A daemon that no longer answers the watchdog is killed and started again."""
    with drop_in("WatchdogSec=5\nTimeoutAbortSec=5\n"):
        systemctl("start", UNIT)
        complete()
        before = main_process()
        subprocess.run(["kill", "-STOP", str(before)], check=True)
        wait_until(lambda: show("NRestarts") == "1" and show("ActiveState") == "active",
                   "the restart")
        assert main_process() != before
        assert "watchdog" in journal().lower() or "Watchdog" in journal("init.scope")
        complete()


def check_crash(kind):
    """A daemon that dies is started again."""
    systemctl("start", UNIT)
    subprocess.run(["kill", "-KILL", str(main_process())], check=True)
    wait_until(lambda: show("NRestarts") == "1" and show("ActiveState") == "active", "the restart")
    complete()


def check_exit_codes(kind):
    """2, for what it was given, is not tried again; 1, for what the machine refuses, is."""
    good = CONFIGURATION.read_text()
    try:
        CONFIGURATION.write_text('{"model": "/opt/lockstep/none.gguf"}')
        assert systemctl("start", UNIT, check=False).returncode != 0
        wait_until(lambda: show("ActiveState") == "failed", "the failure")
        assert show("ExecMainStatus") == "2" and show("NRestarts") == "0"
    finally:
        CONFIGURATION.write_text(good)
    systemctl("reset-failed", UNIT)
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(ADDRESS)
        taken.listen()
        systemctl("start", "--no-block", UNIT)
        wait_until(lambda: int(show("NRestarts")) >= 1, "another try")
        # it is told between two tries, and not while one runs
        wait_until(lambda: show("ExecMainStatus") == "1", "the exit code")
    wait_until(lambda: show("ActiveState") == "active", "the start")
    complete()


def check_socket(kind):
    """With the socket unit a connection waits for the daemon, over start and restart."""
    systemctl("start", "lockstepd.socket")
    assert show("ActiveState") == "inactive"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:  # 503 while it loads
        status, text = ask("GET", "/health/ready")
        if status == 200:
            break
        assert status == 503 and time.monotonic() < deadline, text
    complete()
    refused = []
    ended = threading.Event()

    def knock():
        while not ended.is_set():
            try:
                with socket.create_connection(ADDRESS, timeout=PATIENCE_SECONDS):
                    pass
            except ConnectionRefusedError as error:
                refused.append(error)

    knocking = threading.Thread(target=knock)
    knocking.start()
    before = main_process()
    systemctl("restart", UNIT)
    ended.set()
    knocking.join()
    assert main_process() != before
    assert not refused
    # Those who have knocked and left may still have all the places of their address.
    wait_until(lambda: ask("GET", "/health/ready")[0] == 200 and metric(
        "lockstep_http_connections") < 64, "the connections to be gone")
    complete()


def check_hugepages(kind):
    """The set-up unit sets pages aside, the daemon takes them, and they are given back."""
    if kind != "guest":
        return "only in a guest: the pools here are the machine's own"
    pool = pathlib.Path(
        "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages")
    systemctl("start", UNIT)
    assert pool.read_text() == "16\n"
    text = ask("GET", "/metrics")[1]
    taken = re.search(r'^lockstep_rank_page_bytes\{.*page="huge_2mib"\} (\S+)$', text, re.M)
    assert float(taken[1]) > 0
    systemctl("stop", UNIT)
    systemctl("stop", "lockstepd-hugepages.service")
    assert pool.read_text() == "0\n"
    return None


def check_handover(kind):
    """Weights stay in the descriptor store: a restart reads none of them."""
    command = "/usr/local/bin/lockstepd serve --config /etc/lockstep/lockstepd.json"
    command += " --model /opt/lockstep/model.gguf --keep-weights true"
    seconds = "1" if kind == "native" else str(PATIENCE_SECONDS)
    with drop_in(f"ExecStart=\nExecStart={command}\n"):
        told = subprocess.run(["/usr/local/bin/check-handover", UNIT, "http://127.0.0.1:8080",
                               seconds], capture_output=True, text=True)
        assert told.returncode == 0, told.stdout + told.stderr
        systemctl("stop", UNIT)
    return told.stdout


def check_exposure(kind):
    """What the running systemd says of the unit that it runs."""
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", f"/etc/systemd/system/{UNIT}",
         "/etc/systemd/system/lockstepd.socket",
         "/etc/systemd/system/lockstepd-hugepages.service"], capture_output=True, text=True)
    own = [line for line in verified.stderr.splitlines() if "lockstepd" in line]
    assert not own, own
    told = subprocess.run(["systemd-analyze", "security", "--threshold=15", "--no-pager", UNIT],
                          capture_output=True, text=True)
    assert told.returncode == 0, told.stdout[-500:]
    return re.search(r"exposure level.*: (\S+)", told.stdout)[1]


def check_times(kind):
    """How long systemctl takes to start and to restart the daemon."""
    if kind != "native":
        return "only with --native: the guest is emulated"
    times = []
    for action in ("start", "restart", "restart", "restart"):
        begin = time.monotonic()
        systemctl(action, UNIT)
        times.append(f"{action} {time.monotonic() - begin:.2f} s")
        complete()
    return ", ".join(times)


CHECKS = [check_start, check_sandbox, check_reload, check_secrets, check_drain, check_watchdog,
          check_crash, check_exit_codes, check_socket, check_hugepages, check_handover,
          check_exposure, check_times]


def stop_everything():
    systemctl("stop", "lockstepd.socket", UNIT, "lockstepd-hugepages.service", check=False)
    systemctl("reset-failed", check=False)
    # whatever it said before is of no matter to the next check
    subprocess.run(["journalctl", "--rotate", "-q"], check=False)
    subprocess.run(["journalctl", "--vacuum-time=1us", "-q"], check=False, capture_output=True)


def main():
    kind, *names = sys.argv[1:]
    failed = []
    for check in CHECKS:
        name = check.__name__.removeprefix("check_")
        if names and name not in names:
            continue
        begin = time.monotonic()
        try:
            said = check(kind)
            print(f"ok   {name} ({time.monotonic() - begin:.1f} s){': ' + said if said else ''}",
                  flush=True)
        except Exception:
            failed.append(name)
            print(f"FAIL {name}\n{traceback.format_exc()}\n{journal()[-3000:]}", flush=True)
        stop_everything()
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
