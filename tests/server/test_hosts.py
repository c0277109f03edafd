"""By which names a daemon without keys may be called: a page whose name is made to stand for this
machine (DNS rebinding) is of the daemon's own origin to a browser, but sends its own name as Host."""

import hashlib
import json
import socket

import requests

from conftest import PATIENCE_SECONDS

EVIL = "evil.example:8080"
COMPLETION = {"model": "m", "prompt": "Once", "max_tokens": 2, "ignore_eos": True}


def ask(daemon, path, host, body=None):
    return requests.request(
        "GET" if body is None else "POST", daemon.url + path, json=body, headers={"Host": host},
        timeout=PATIENCE_SECONDS)


def test_a_page_with_another_name_can_use_nothing_but_health(start):
    daemon = start("--served-model-name", "m").wait_until_ready()
    for path in ("/", "/ui/app.js", "/metrics", "/v1/models", "/version", "/nowhere"):
        refused = ask(daemon, path, EVIL)
        assert refused.status_code == 403, path
        error = refused.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] == "host_not_allowed"
        assert EVIL in error["message"] and "--allowed-hosts" in error["message"]
    assert ask(daemon, "/v1/completions", EVIL, COMPLETION).status_code == 403
    assert ask(daemon, "/v1/messages", EVIL, COMPLETION).json()["type"] == "error"
    for path in ("/health", "/health/live", "/health/ready"):
        assert ask(daemon, path, EVIL).status_code == 200
    port = daemon.url.rsplit(":", 1)[1]
    for host in ("localhost", f"a.localhost:{port}", f"127.0.0.1:{port}", socket.gethostname()):
        assert ask(daemon, "/v1/completions", host, COMPLETION).status_code == 200, host
    assert daemon.metric("lockstep_http_rejected_total", reason="key") == 8
    assert daemon.metric("lockstep_generation_tokens_total") == 8
    assert daemon.stop() == 0


def test_names_that_are_allowed_and_daemons_with_keys_are_called_anything(start, tmp_path):
    proxied = start("--allowed-hosts", "llm.example.org,chat.example.org")
    assert ask(proxied, "/version", "llm.example.org").status_code == 200
    assert ask(proxied, "/version", EVIL).status_code == 403
    assert ask(start("--allowed-hosts", "*"), "/version", EVIL).status_code == 200
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps(
        {"keys": [{"name": "alice", "sha256": hashlib.sha256(b"secret").hexdigest()}]}))
    guarded = start("--api-keys", str(keys))
    assert ask(guarded, "/version", EVIL).status_code == 401
    headers = {"Host": EVIL, "Authorization": "Bearer secret"}
    assert guarded.get("/version", headers=headers).status_code == 200
