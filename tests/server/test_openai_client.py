"""The openai client from PyPI drives the real daemon."""

import concurrent.futures

import openai
import pytest

from conftest import wait_until


@pytest.fixture(scope="module")
def client(daemon):
    return daemon.client(max_retries=0)


def complete(client, **fields):
    return client.completions.create(
        **{"model": "stories", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 16,
           **fields})


def test_a_completion_whole_and_streamed(client):
    whole = complete(client)
    assert whole.choices[0].text and whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 16
    chunks = list(complete(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].text
    assert chunks[-1].usage == whole.usage


def test_logprobs_have_the_clients_types(client):
    logprobs = complete(client, logprobs=2).choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == 16
    assert all(len(top) >= 2 for top in logprobs.top_logprobs)


def test_several_choices_are_several_texts_that_the_seed_decides(client):
    first = complete(client, n=4, temperature=1.2, seed=11)
    second = complete(client, n=4, temperature=1.2, seed=11)
    texts = [choice.text for choice in first.choices]
    assert texts == [choice.text for choice in second.choices]
    assert len(set(texts)) > 1


def test_stop_ends_before_the_string(client):
    plain = complete(client, max_tokens=40).choices[0].text
    stopped = complete(client, max_tokens=40, stop=[plain[20:24]]).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.text == plain[: plain.index(plain[20:24])]


def test_models_are_listed_and_retrieved(client):
    assert [model.id for model in client.models.list()] == ["stories", "alias", "org/model"]
    assert client.models.retrieve("stories").id == "stories"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_errors_are_the_clients_exceptions(client):
    with pytest.raises(openai.NotFoundError) as unknown:
        complete(client, model="other")
    assert unknown.value.code == "model_not_found" and unknown.value.param == "model"
    with pytest.raises(openai.BadRequestError) as wrong:
        complete(client, temperature=3)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        complete(client, max_tokens=10_000_000)
    assert long.value.code == "context_length_exceeded"


def test_32_requests_at_once_are_answered_as_if_alone(client):
    prompts = [f"Once upon a time there was a {word}" for word in
               ("cat", "dog", "girl", "boy", "bird", "tree", "ball", "fish")] * 4
    alone = {prompt: complete(client, prompt=prompt, seed=1, temperature=1).choices[0].text
             for prompt in set(prompts)}
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(
            lambda prompt: complete(client, prompt=prompt, seed=1, temperature=1).choices[0].text,
            prompts))
    assert together == [alone[prompt] for prompt in prompts]


def test_leaving_a_stream_stops_its_request(daemon, client):
    before = daemon.metric("lockstep_requests_total", finish_reason="cancelled")
    # Longer than anyone would wait for: it ends because the client leaves.
    context = daemon.get("/v1/models/stories").json()["max_model_len"]
    with complete(client, stream=True, max_tokens=context - 16,
                  extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    wait_until(lambda: daemon.metric("lockstep_requests_running") == 0)
    after = daemon.metric("lockstep_requests_total", finish_reason="cancelled")
    finished = daemon.metric("lockstep_requests_total", finish_reason="length")
    assert after == before + 1 or finished > 0  # a short context may be full before it leaves


def test_a_chat_whole_and_streamed(chat_daemon):
    client = chat_daemon.client(max_retries=0)
    fields = {"model": "demo", "temperature": 0, "max_tokens": 24,
              "messages": [{"role": "user", "content": "Hello! Who are you?"}]}
    whole = client.chat.completions.create(**fields)
    assert whole.choices[0].message.content
    chunks = client.chat.completions.create(**fields, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    # The client's own accumulation takes no answer that was cut at its length.
    with client.chat.completions.stream(**fields, stop=[" "]) as stream:
        assert stream.get_final_completion().choices[0].message.content == text.split(" ")[0]
