"""What bodies that are made for it can cost in memory, and that nobody waits for whom he must not."""

import concurrent.futures

from conftest import ENDLESS, wait_until
from openai_schema import check_error

MIB = 1 << 20


def memory(daemon):
    """Bytes that are resident, and the most that ever were."""
    with open(f"/proc/{daemon.process.pid}/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return [int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM")]


def test_many_empty_prompts_at_once_are_refused_for_little_memory(start):
    daemon = start("--served-model-name", "m").wait_until_ready()
    body = b'{"model":"m","max_tokens":1,"prompt":[' + b",".join([b'""'] * 1_040_000) + b"]}"
    before, _ = memory(daemon)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: daemon.post_bytes("/v1/completions", body), range(8)))
    for answer in answers:
        error = check_error(answer, 400, "prompt", None)
        assert "1040000 prompts with n = 1 make 1040000 choices" in error["message"]
    _, most = memory(daemon)
    assert most - before < 600 * MIB
    # And it is given back, but for what a few of the bodies come to.
    wait_until(lambda: memory(daemon)[0] - before < 150 * MIB)


def test_a_large_body_waits_for_no_answer_of_another(start):
    """Far more than may be parsed at once has been parsed, and all of it runs or waits."""
    daemon = start("--served-model-name", "m", "--sequences", "1", *ENDLESS).wait_until_ready()
    context = daemon.get("/v1/models").json()["data"][0]["max_model_len"]
    padding = "x" * (3 * MIB)
    body = {"model": "m", "prompt": "Once", "max_tokens": context - 32, "n": 50, "stream": True,
            "ignore_eos": True, "padding": padding}
    streams = [daemon.post("/v1/completions", body, stream=True) for _ in range(6)]
    assert [stream.status_code for stream in streams] == [200] * 6
    answer = daemon.post("/tokenize", {"model": "m", "prompt": "a", "padding": padding})
    assert answer.status_code == 200
    assert daemon.metric("lockstep_requests_total") == 0
    for stream in streams:
        stream.close()


def test_tokenizing_gives_the_same_json_with_and_without_texts(daemon):
    given = {"model": "stories", "prompt": 'A "quoted" line\n', "add_special_tokens": True}
    plain = daemon.post("/tokenize", given).json()
    texts = daemon.post("/tokenize", {**given, "return_token_strs": True}).json()
    assert plain["token_strs"] is None and plain["count"] == len(plain["tokens"]) > 3
    assert texts["tokens"] == plain["tokens"] and len(texts["token_strs"]) == texts["count"]
    back = daemon.post("/detokenize", {"tokens": plain["tokens"][1:]}).json()
    assert back["prompt"] == back["content"] == given["prompt"]
    empty = daemon.post("/tokenize", {"content": "", "return_token_strs": True}).json()
    assert (empty["tokens"], empty["token_strs"]) == ([], [])


def test_detokenize_gives_so_much_text_and_says_what_is_more(chat_daemon):
    text = "<|endoftext|>"
    given = {"model": "demo", "prompt": text, "add_special_tokens": False}
    (token,) = chat_daemon.post("/tokenize", given).json()["tokens"]
    most = 8 * MIB
    fitting = most // len(text)
    answer = chat_daemon.post("/detokenize", {"tokens": [token] * fitting})
    assert answer.json() == {"prompt": text * fitting, "content": text * fitting}
    answer = chat_daemon.post("/detokenize", {"tokens": [token] * (fitting + 1)})
    message = check_error(answer, 400, "tokens", None)["message"]
    assert f"{fitting + 1} ids come to {(fitting + 1) * len(text)} bytes" in message
    assert f"at most {most}" in message
