"""Drafted tokens, as clients see them: the same answers, counted where a prediction was given."""

import subprocess
import sys

import pytest

from conftest import DEMO, FIXTURES, ROOT, Daemon, run_program

CHAT = {"model": "demo", "temperature": 0, "max_tokens": 48,
        "messages": [{"role": "user", "content": "Tell me a story."}]}


def ask(daemon, **fields):
    answer = daemon.post("/v1/chat/completions", {**CHAT, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def details(body):
    return body["usage"]["completion_tokens_details"]


@pytest.fixture(scope="module")
def drafting():
    """A daemon that always drafts: how much pays is a matter of the machine's times."""
    running = Daemon(DEMO, "--served-model-name", "demo", "--draft-tokens", "7").wait_until_ready()
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def plain(drafting):
    return ask(drafting, speculation=False)


def text_of(body):
    return body["choices"][0]["message"]["content"]


def test_a_prediction_that_comes_true_is_accepted_and_changes_nothing(drafting, plain):
    assert details(plain)["accepted_prediction_tokens"] == 0
    body = ask(drafting, prediction={"type": "content", "content": text_of(plain)})
    assert body["choices"] == plain["choices"]
    assert details(body)["accepted_prediction_tokens"] > 8


def test_a_prediction_that_is_wrong_changes_nothing(drafting, plain):
    words = text_of(plain).split()
    wrong = " ".join(word for pair in zip(words[1::2], words[::2]) for word in pair)
    body = ask(drafting, prediction={"type": "content", "content": wrong})
    assert body["choices"] == plain["choices"]


def test_without_a_prediction_no_draft_is_counted(drafting):
    repeating = "one two three four five one two three four five one two three"
    body = drafting.post("/v1/completions", {
        "model": "demo", "prompt": repeating, "max_tokens": 24, "temperature": 0}).json()
    assert details(body)["accepted_prediction_tokens"] == 0
    assert details(body)["rejected_prediction_tokens"] == 0


def test_drafts_are_metrics(drafting, plain):
    before = drafting.metric("lockstep_accepted_draft_tokens_total", position="0")
    ask(drafting, prediction={"type": "content", "content": text_of(plain)})
    assert drafting.metric("lockstep_accepted_draft_tokens_total", position="0") > before
    assert (drafting.metric("lockstep_drafts_total")
            == drafting.metric("lockstep_drafted_tokens_total", position="0"))


def test_a_prediction_has_a_form_and_fits_the_context(drafting):
    for prediction in ("text", {"type": "text", "content": "a"}, {"type": "content"}):
        answer = drafting.post("/v1/chat/completions", {**CHAT, "prediction": prediction})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith("prediction")
    context = drafting.get("/v1/models").json()["data"][0]["max_model_len"]
    for words in (context + 1, 200_000):  # more than its context, and more than is ever counted
        long = {"type": "content", "content": "word " * words}
        answer = drafting.post("/v1/chat/completions", {**CHAT, "prediction": long})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "prediction")
        assert error["code"] == "context_length_exceeded"
        assert "the prediction has at least" in error["message"]


def test_it_can_be_switched_off_for_all(start, plain):
    daemon = start("--speculate", "none", "--served-model-name", "demo",
                   model=DEMO).wait_until_ready()
    body = ask(daemon, prediction={"type": "content", "content": text_of(plain)})
    assert text_of(body) == text_of(plain)
    assert daemon.metric("lockstep_drafts_total") == 0


@pytest.mark.parametrize("option, value", [("--speculate", "oracle"), ("--draft-tokens", "16")])
def test_an_unknown_drafter_and_too_long_drafts_are_refused(option, value):
    refused = run_program("serve", "--model", DEMO, option, value)
    assert refused.returncode == 2
    assert option in refused.stderr and value in refused.stderr


def test_a_draft_model_changes_nothing_and_is_counted(start, plain):
    daemon = start("--served-model-name", "demo", "--draft-model", DEMO, "--speculate", "draft",
                   "--draft-tokens", "4", model=DEMO).wait_until_ready()
    assert ask(daemon)["choices"] == plain["choices"]
    drafted = daemon.metric("lockstep_drafted_tokens_total", drafter="draft", position="0")
    accepted = daemon.metric("lockstep_accepted_draft_tokens_total", drafter="draft", position="0")
    assert accepted > 0.9 * drafted > 0  # it is the model itself
    assert daemon.metric("lockstep_draft_passes_seconds_total") > 0
    ask(daemon, speculation=False)
    assert daemon.metric("lockstep_drafted_tokens_total", drafter="draft",
                         position="0") == drafted
    sampled = {"temperature": 1.2, "seed": 5, "frequency_penalty": 0.5}
    assert (ask(daemon, **sampled)["choices"]
            == ask(daemon, speculation=False, **sampled)["choices"])


@pytest.mark.parametrize("draft, model, drafter", [
    ("eagle/llama-words-eagle.gguf", "eagle/llama.gguf", "eagle3"),
    ("assistants/gemma4-assistant.gguf", "families/gemma4.gguf", "mtp")])
def test_a_file_that_reads_the_models_rows_changes_nothing_and_is_counted(
        start, draft, model, drafter):
    daemon = start("--served-model-name", "demo", "--draft-model", FIXTURES / draft,
                   "--speculate", drafter, "--draft-tokens", "3",
                   model=FIXTURES / model).wait_until_ready()

    def answer(**fields):
        body = daemon.post("/v1/completions", {"model": "demo", "prompt": [5, 17, 80, 3],
                                               "max_tokens": 40, "ignore_eos": True, **fields})
        assert body.status_code == 200, body.text
        return body.json()["choices"]

    for sampled in ({"temperature": 0}, {"temperature": 1.2, "seed": 5}):
        assert answer(**sampled) == answer(speculation=False, **sampled)
    assert daemon.metric("lockstep_drafted_tokens_total", drafter=drafter, position="0") > 20
    assert daemon.metric("lockstep_draft_passes_seconds_total") > 0


def drafting_model(folder, drafter):
    """A model whose drafter is right of four of five tokens: its path, and the daemon's options."""
    pytest.importorskip("gguf")
    model, draft = folder / "model.gguf", folder / "draft.gguf"
    made = [sys.executable, ROOT / "scripts/models/make_draft_pair.py", "--tiny", "--format", "Q8_0",
            "--acceptance", "0.8", "--output", model]
    if drafter == "mtp":
        subprocess.run([*made, "--shape", "qwen3.5-0.8b", "--layers", "4"], check=True)
        return model, ["--speculate", "mtp"]
    subprocess.run([*made, "--shape", "tinyllama-1.1b", "--layers", "2", "--draft-layers", "1",
                    "--draft-width", "128", "--draft-output", draft], check=True)
    return model, ["--draft-model", draft]


@pytest.mark.parametrize("drafter", ["draft", "mtp"])
def test_a_drafter_is_right_as_often_as_it_was_made_to_be(start, tmp_path, drafter):
    model, options = drafting_model(tmp_path, drafter)
    daemon = start(*options, "--draft-tokens", "2", "--context", "1024",
                   model=model).wait_until_ready()
    asked = {"prompt": "w1 w2 w3", "max_tokens": 900, "temperature": 0, "ignore_eos": True}
    # A block does not draft where it would share pages that it has not computed.
    plain = daemon.post("/v1/completions",
                        {**asked, "speculation": False, "cache_salt": "plain"}).json()
    drafted = daemon.post("/v1/completions", asked).json()
    assert drafted["choices"] == plain["choices"]

    def counted(name, position):
        return daemon.metric(name, drafter=drafter, position=str(position))

    tried = [counted("lockstep_drafted_tokens_total", place) for place in (0, 1)]
    right = [counted("lockstep_accepted_draft_tokens_total", place) for place in (0, 1)]
    assert tried[0] > 300
    assert right[0] / tried[0] == pytest.approx(0.8, abs=0.05)
    assert right[1] / tried[1] == pytest.approx(0.64, abs=0.06)


def test_a_draft_model_without_a_file_or_with_another_vocabulary_is_refused():
    refused = run_program("serve", "--model", DEMO, "--speculate", "draft")
    assert refused.returncode != 0 and "--draft-model" in refused.stderr
    other = FIXTURES / "families" / "apertus.gguf"
    refused = run_program("serve", "--model", DEMO, "--draft-model", other)
    assert refused.returncode != 0 and "another vocabulary" in refused.stderr
    refused = run_program("serve", "--model", DEMO, "--speculate", "eagle3", "--draft-model", DEMO)
    assert refused.returncode != 0 and "use an eagle3 file" in refused.stderr.lower()


def test_the_plan_shows_both_models():
    plan = run_program("plan", "--model", DEMO, "--draft-model", DEMO, "--context", "256")
    assert plan.returncode == 0, plan.stderr
    assert "draft model " in plan.stdout
