"""2,000 requests made up from /openapi.json: none is answered with a server error, and every status
is one that the document describes.

To make them up takes most of the time. They follow from the document, the seed, their number and the
programs that make them: the same are kept in $XDG_CACHE_HOME/lockstep/schemathesis (~/.cache)."""

import base64
import contextlib
import gzip
import hashlib
import json
import os
import pathlib
import sys

import pytest
import requests

from conftest import DEMO, ROOT, Daemon

CASES = int(os.environ.get("LOCKSTEP_SCHEMATHESIS_CASES", 2000))
SEED = int(os.environ.get("LOCKSTEP_TEST_SEED", 20260101))
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
MAKERS = ROOT / "tests/requirements.txt"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    # A short context and few choices: simulated requests ask for all there is.
    running = Daemon(DEMO, "--served-model-name", "demo", "--context", "64", "--max-n", "4",
                     "--cache-dir", str(tmp_path_factory.mktemp("cache")))
    running.wait_until_ready()
    yield running
    assert running.stop() == 0


def make_requests(url):
    """Each as its operation, whether it says itself after how long it shall end, which may be a
    millisecond, and what is sent."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, seed, settings

    operations = [result.ok() for result in
                  schemathesis.openapi.from_url(url + "/openapi.json").get_all_operations()]
    posts = [operation for operation in operations if operation.method.upper() == "POST"]
    gets = [operation for operation in operations if operation.method.upper() == "GET"]
    assert len(posts) >= 8 and len(gets) >= 6
    made = []

    def take(case):
        prepared = requests.Request(**case.as_transport_kwargs(base_url=url)).prepare()
        body = prepared.body or b""
        made.append({
            "method": case.method, "operation": case.path, "path": prepared.path_url,
            "ends": isinstance(case.body, dict) and isinstance(case.body.get("timeout"), (int, float)),
            "headers": dict(prepared.headers),
            "body": base64.b64encode(body.encode() if isinstance(body, str) else body).decode()})

    for operation in posts:
        @seed(SEED)
        @settings(max_examples=CASES // len(posts) + 1, database=None, deadline=None,
                  phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        @given(operation.as_strategy())
        def run(case):
            take(case)

        run()
    for operation in gets:
        take(operation.Case(path_parameters={"id": "demo"}))
    return made


def kept_requests(url, document):
    """Made now, or when all that they follow from was the same."""
    made_from = {name: part for name, part in document.items() if name != "info"}
    key = hashlib.sha256(json.dumps([
        made_from, MAKERS.read_text(), sys.version, SEED, CASES,
        pathlib.Path(__file__).read_text()]).encode())
    kept = CACHE / "lockstep/schemathesis" / f"{key.hexdigest()}.json.gz"
    if kept.exists():
        return json.loads(gzip.decompress(kept.read_bytes()))
    made = make_requests(url)
    with contextlib.suppress(OSError):  # without such a folder they are made each time
        kept.parent.mkdir(parents=True, exist_ok=True)
        written = kept.with_suffix(f".{os.getpid()}")
        written.write_bytes(gzip.compress(json.dumps(made).encode()))
        written.rename(kept)
    return made


def send(url, request):
    prepared = requests.Request(request["method"], url).prepare()
    prepared.url = url + request["path"]
    prepared.headers = requests.structures.CaseInsensitiveDict(request["headers"])
    prepared.body = base64.b64decode(request["body"]) or None
    with requests.Session() as session:
        return session.send(prepared, timeout=60)


def test_simulated_requests_are_answered_as_described(served):
    print(f"seed {SEED}, {CASES} cases (LOCKSTEP_TEST_SEED, LOCKSTEP_SCHEMATHESIS_CASES)")
    document = served.get("/openapi.json").json()
    made = kept_requests(served.url, document)
    wrong = []
    for request in made:
        method, path = request["method"], request["operation"]
        answer = send(served.url, request)
        if answer.status_code >= 500 and not (answer.status_code == 504 and request["ends"]):
            wrong.append((method, path, answer.status_code, answer.text[:300]))
        if str(answer.status_code) not in document["paths"][path][method.lower()]["responses"]:
            wrong.append((method, path, answer.status_code, "is not described"))
    assert not wrong, wrong[:5]
    assert len(made) >= CASES * 0.9, len(made)
    # It still serves.
    assert served.get("/health/ready").status_code == 200
