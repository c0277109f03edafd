"""One model is served: its name may be left out of a request, and may be anything under '*'."""

import pytest

from conftest import ROOT
from openai_schema import check_error

DEMO = ROOT / "config/demo.gguf"
MESSAGES = [{"role": "user", "content": "Hi"}]
ENDPOINTS = {
    "/v1/completions": {"prompt": "a", "max_tokens": 1},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/responses": {"input": "a", "max_output_tokens": 1},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/embeddings": {"input": "a"},
}
OTHERS = {
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/completions/render": {"prompt": "a"},
    "/v1/chat/completions/render": {"messages": MESSAGES},
    "/tokenize": {"prompt": "a"},
    "/apply-template": {"messages": MESSAGES},
}


@pytest.mark.parametrize("path", [*ENDPOINTS, *OTHERS])
def test_the_name_may_be_left_out(chat_daemon, path):
    body = {**ENDPOINTS, **OTHERS}[path]
    for given in (body, {**body, "model": None}):
        answer = chat_daemon.post(path, given)
        assert answer.status_code == 200, answer.text
        if path in ENDPOINTS:
            assert answer.json()["model"] == "demo"


def test_a_name_that_is_given_is_looked_at(chat_daemon):
    for name in ("other", ""):
        answer = chat_daemon.post("/v1/completions", {"prompt": "a", "model": name})
        check_error(answer, 404, "model", "model_not_found")


def test_a_star_takes_any_name_and_gives_it_back(start):
    daemon = start("--served-model-name", "mine,*", model=DEMO).wait_until_ready()
    for path, body in ENDPOINTS.items():
        for name in ("gpt-4o", "claude-sonnet-4-5/x", "mine", 'a "name"'):
            answer = daemon.post(path, {**body, "model": name})
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == name
        assert daemon.post(path, body).json()["model"] == "mine"
    for path, body in OTHERS.items():
        assert daemon.post(path, {**body, "model": "gpt-4o"}).status_code == 200
    assert [card["id"] for card in daemon.get("/v1/models").json()["data"]] == ["mine"]
    assert daemon.get("/v1/models/gpt-4o").json()["id"] == "gpt-4o"
    check_error(daemon.post("/v1/completions", {"prompt": "a", "model": "x" * 257}), 400, "model")
    names = daemon.get("/openapi.json").json()["components"]["schemas"]["ModelName"]
    assert "enum" not in names and names["maxLength"] == 256
    assert daemon.metric("lockstep_requests_waiting", model="mine") == 0


def test_a_star_alone_lists_the_files_name(start):
    daemon = start("--served-model-name", "*", model=DEMO).wait_until_ready()
    (card,) = daemon.get("/v1/models").json()["data"]
    assert card["id"] not in ("", "*")
    assert daemon.post("/v1/completions", ENDPOINTS["/v1/completions"]).json()["model"] == card["id"]
