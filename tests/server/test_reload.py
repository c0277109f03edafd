"""SIGHUP: what it changes, what it keeps, and how that is told."""

import json
import signal

from conftest import wait_until


def reload(daemon, success):
    """SIGHUP, until the daemon has counted it."""
    before = daemon.metric("lockstep_config_last_reload_timestamp_seconds")
    daemon.process.send_signal(signal.SIGHUP)
    wait_until(
        lambda: daemon.metric("lockstep_config_last_reload_timestamp_seconds") > before)
    assert daemon.metric("lockstep_config_last_reload_success") == success


def write(path, **options):
    path.write_text(json.dumps(options))


def test_the_log_level_changes_and_comes_back(start, tmp_path):
    path = tmp_path / "c.json"
    write(path)
    daemon = start("--config", str(path)).wait_until_ready()
    assert daemon.metric("lockstep_config_last_reload_success") == 1
    write(path, **{"log-level": "debug"})
    reload(daemon, 1)
    daemon.get("/health/live", headers={"X-Request-Id": "a-probe"})
    daemon.wait_for_line("id=a-probe")  # probes are logged at level debug
    write(path)
    reload(daemon, 1)
    daemon.get("/health/live", headers={"X-Request-Id": "another-probe"})
    daemon.get("/version", headers={"X-Request-Id": "the-end"})
    daemon.wait_for_line("id=the-end")
    assert not any("another-probe" in line for line in daemon.log)


def test_an_invalid_configuration_keeps_the_old_one(start, tmp_path):
    path = tmp_path / "c.json"
    write(path, **{"log-level": "debug"})
    daemon = start("--config", str(path)).wait_until_ready()
    for text in ('{"log-level": "info"', '{"log-level": "loud"}', '{"no-option": 1}'):
        path.write_text(text)
        reload(daemon, 0)
        daemon.wait_for_line("the configuration was not read again.*c.json")
    daemon.get("/health/live", headers={"X-Request-Id": "a-probe"})
    daemon.wait_for_line("id=a-probe")
    path.unlink()
    reload(daemon, 0)
    write(path, **{"log-level": "info"})
    reload(daemon, 1)


def test_limits_change_all_together_or_not_at_all(start, tmp_path):
    path = tmp_path / "c.json"
    write(path)
    daemon = start("--config", str(path), "--served-model-name", "m").wait_until_ready()
    body = {"model": "m", "prompt": "Once", "max_tokens": 2, "n": 3, "ignore_eos": True}
    long = {**body, "user": "x" * 4000}
    slow = {**body, "max_tokens": 100, "n": 9}

    def statuses():
        deep = daemon.post_bytes("/tokenize", b'{"x": ' + b"[" * 20 + b"]" * 20 + b"}")
        deep = 200 if "prompt" in deep.text else deep.status_code  # only the prompt is missing
        fields = daemon.get("/version", headers={f"x-{index}": "a" for index in range(10)})
        return [daemon.post("/v1/completions", body).status_code,
                daemon.post("/v1/completions", long).status_code,
                daemon.post("/v1/completions", slow).status_code, deep, fields.status_code]

    assert statuses() == [200, 200, 200, 200, 200]
    write(path, **{"max-n": 2, "max-body-bytes": 2048, "max-json-depth": 8, "max-head-fields": 9,
                   "log-level": "loud"})
    reload(daemon, 0)  # one of them is wrong
    assert statuses() == [200, 200, 200, 200, 200]
    write(path, **{"max-n": 2, "max-body-bytes": 2048, "max-json-depth": 8, "max-head-fields": 9})
    reload(daemon, 1)
    assert statuses() == [400, 413, 400, 400, 431]
    write(path, **{"request-seconds": 0.001})
    reload(daemon, 1)
    assert daemon.post("/v1/completions", slow).status_code == 504
    write(path, **{"waiting-requests": 0, "max-answer-bytes": 2**20})
    reload(daemon, 1)
    answer = daemon.post("/v1/completions", slow)  # more choices than may run, and none may wait
    assert answer.status_code == 400 and "at most 8" in answer.text
    write(path)
    reload(daemon, 1)
    assert statuses() == [200, 200, 200, 200, 200]
    assert not any("restart" in line for line in daemon.log)


def test_what_takes_a_restart_is_named_and_what_does_not_is_not(start, tmp_path):
    path = tmp_path / "c.json"
    write(path)
    daemon = start("--config", str(path)).wait_until_ready()
    write(path, **{"sequences": 3, "host": "0.0.0.0", "drain-seconds": 1})
    reload(daemon, 1)
    line = daemon.wait_for_line("only after a restart: (.*)").group(1)
    assert "sequences" in line and "host" in line and "drain-seconds" not in line


def test_the_drains_time_can_be_changed(start, tmp_path):
    path = tmp_path / "c.json"
    write(path, **{"drain-seconds": 80000})
    daemon = start("--config", str(path)).wait_until_ready()
    write(path, **{"drain-seconds": 3.5})
    reload(daemon, 1)
    daemon.process.send_signal(signal.SIGTERM)
    daemon.wait_for_line(r"running requests have 3\.5 s")
    assert daemon.stop() == 0


def test_reloads_under_load_disturb_nobody(start):
    daemon = start("--served-model-name", "m").wait_until_ready()
    body = {"model": "m", "prompt": "Once", "max_tokens": 8, "seed": 1, "ignore_eos": True}
    expected = daemon.post("/v1/completions", body).json()["choices"]
    for _ in range(20):
        daemon.process.send_signal(signal.SIGHUP)
        assert daemon.post("/v1/completions", body).json()["choices"] == expected
    assert daemon.stop() == 0
