"""2,000 requests made up from /openapi.json: none is answered with a server error, and every status
is one that the document describes."""

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings

from conftest import DEMO, Daemon

CASES = int(os.environ.get("LOCKSTEP_SCHEMATHESIS_CASES", 2000))
SEED = int(os.environ.get("LOCKSTEP_TEST_SEED", 20260101))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    # A short context and few choices: simulated requests ask for all there is.
    running = Daemon(DEMO, "--served-model-name", "demo", "--context", "64", "--max-n", "4",
                     "--cache-dir", str(tmp_path_factory.mktemp("cache")))
    running.wait_until_ready()
    yield running
    assert running.stop() == 0


def asks_for_an_end(case):
    """Whether the request says itself after how long it shall end, which may be a millisecond."""
    return isinstance(case.body, dict) and isinstance(case.body.get("timeout"), (int, float))


def test_simulated_requests_are_answered_as_described(served):
    print(f"seed {SEED}, {CASES} cases (LOCKSTEP_TEST_SEED, LOCKSTEP_SCHEMATHESIS_CASES)")
    schema = schemathesis.openapi.from_url(served.url + "/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    posts = [operation for operation in operations if operation.method.upper() == "POST"]
    gets = [operation for operation in operations if operation.method.upper() == "GET"]
    assert len(posts) >= 8 and len(gets) >= 6
    wrong, sent = [], 0

    def send(case):
        nonlocal sent
        sent += 1
        answer = case.call(base_url=served.url, timeout=60)
        if answer.status_code >= 500 and not (answer.status_code == 504 and asks_for_an_end(case)):
            wrong.append((case.method, case.path, answer.status_code, answer.text[:300]))
        described = case.operation.definition.raw["responses"]
        if str(answer.status_code) not in described:
            wrong.append((case.method, case.path, answer.status_code, "is not described"))

    each = CASES // len(posts) + 1
    for operation in posts:
        @seed(SEED)
        @settings(max_examples=each, database=None, deadline=None, phases=[Phase.generate],
                  suppress_health_check=list(HealthCheck))
        @given(operation.as_strategy())
        def run(case):
            send(case)

        run()
    for operation in gets:
        send(operation.Case(path_parameters={"id": "demo"}))
    assert not wrong, wrong[:5]
    assert sent >= CASES * 0.9, sent
    # It still serves.
    assert served.get("/health/ready").status_code == 200
