"""Models that think, on the real daemon: the bundled model under a template that opens thoughts in
the prompt (as Qwen3-Thinking's does), or, for requests that say so, leaves that to the model."""

import json

import anthropic
import jsonschema
import pytest

from conftest import Daemon, write_with_template

TEMPLATE = """
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if not model_opens %}<think>
{% endif %}{% endif %}"""
ASKED = {"model": "demo", "temperature": 0, "messages": [{"role": "user", "content": "What is 1+1?"}]}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
          "additionalProperties": False}
FUNCTION = {"name": "get_time", "description": "The time", "parameters": SCHEMA}
TOOLS = {"tools": [{"type": "function", "function": FUNCTION}], "parallel_tool_calls": False}
NAMED = {"type": "function", "function": {"name": "get_time"}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
CLOSED = "<think>\n\n</think>\n\n"


def start_with_template(template, folder):
    changed = write_with_template(template, folder / "changed.gguf")
    return Daemon(changed, "--served-model-name", "demo", "--workers", "1").wait_until_ready()


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    running = start_with_template(TEMPLATE, tmp_path_factory.mktemp("models"))
    yield running
    assert running.stop() == 0


def test_a_template_that_cannot_be_used_is_said_to_be_so(tmp_path):
    daemon = start_with_template("{{ messages | no_such_filter }}", tmp_path)
    answer = daemon.post("/v1/chat/completions", ASKED)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert "no_such_filter" in message and "/v1/completions" in message
    assert daemon.stop() == 0


def chat(daemon, **fields):
    answer = daemon.post("/v1/chat/completions", {**ASKED, "max_tokens": 120, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def responses(daemon, **fields):
    return daemon.client(max_retries=0).responses.create(
        model="demo", input="What is 1+1?", temperature=0, max_output_tokens=120, **fields)


def messages(daemon, **fields):
    client = anthropic.Anthropic(base_url=daemon.url, api_key="none", max_retries=0)
    return client.messages.create(model="demo", messages=ASKED["messages"], max_tokens=120,
                                  extra_body={"temperature": 0}, **fields)


def prompt(daemon, **fields):
    return daemon.post("/apply-template", {**ASKED, **fields}).json()["prompt"]


@pytest.mark.parametrize("fields", [
    {"choice": ["yes", "no"]}, {"regex": "yes|no"}, {"grammar": 'root ::= "yes" | "no"'},
    {"json_schema": SCHEMA}, {"response_format": FORMAT}, {"structured_outputs": {"json": SCHEMA}},
    {"response_format": FORMAT, "tools": TOOLS["tools"], "max_tokens": 200},
], ids=str)
def test_an_answer_that_is_held_to_a_form_is_given_without_thoughts(thinker, fields):
    [choice] = chat(thinker, **fields)["choices"]
    assert choice["finish_reason"] in ("stop", "tool_calls"), choice
    assert "reasoning_content" not in choice["message"]
    if "tool_calls" not in choice["message"]:
        content = choice["message"]["content"]
        assert content in ("yes", "no") or jsonschema.validate(json.loads(content), SCHEMA) is None
    assert prompt(thinker, **fields).endswith("<|im_start|>assistant\n" + CLOSED)


@pytest.mark.parametrize("tool_choice", ["required", NAMED], ids=["required", "named"])
def test_a_call_that_must_be_is_made(thinker, tool_choice):
    fields = {**TOOLS, "tool_choice": tool_choice}
    [choice] = chat(thinker, **fields)["choices"]
    assert choice["finish_reason"] == "tool_calls", choice
    [call] = choice["message"]["tool_calls"]
    jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)
    assert choice["message"]["content"] is None and "reasoning_content" not in choice["message"]
    deltas = [part["delta"] for event in thinker.events(
        "/v1/chat/completions", {**ASKED, "max_tokens": 120, **fields})[:-1]
        for part in event["choices"]]
    streamed = [part for delta in deltas for part in delta.get("tool_calls", [])]
    assert "".join(part["function"]["arguments"] for part in streamed) == \
        call["function"]["arguments"]


def test_responses_keep_to_a_schema_and_call(thinker):
    text = {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}
    whole = responses(thinker, text=text)
    assert [item.type for item in whole.output] == ["message"] and whole.status == "completed"
    jsonschema.validate(json.loads(whole.output_text), SCHEMA)
    assert list(responses(thinker, text=text, stream=True))[-1].response.output_text == \
        whole.output_text
    called = responses(thinker, tools=[{"type": "function", **FUNCTION, "strict": True}],
                       tool_choice="required", parallel_tool_calls=False)
    [item] = called.output
    assert item.type == "function_call"
    jsonschema.validate(json.loads(item.arguments), SCHEMA)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_time"}], ids=str)
def test_messages_use_a_tool_that_they_must_use(thinker, choice):
    fields = {"tools": [{"name": "get_time", "input_schema": SCHEMA}],
              "tool_choice": {**choice, "disable_parallel_tool_use": True}}
    used = messages(thinker, **fields)
    [block] = used.content
    assert block.type == "tool_use" and used.stop_reason == "tool_use"
    jsonschema.validate(block.input, SCHEMA)
    counted = thinker.post("/v1/messages/count_tokens",
                           {"model": "demo", "messages": ASKED["messages"], **fields}).json()
    assert counted["input_tokens"] == used.usage.input_tokens + used.usage.cache_read_input_tokens


def test_an_answer_that_is_free_begins_with_thoughts(thinker):
    for fields in ({}, {"tools": TOOLS["tools"]}, {"response_format": {"type": "text"}}):
        [choice] = chat(thinker, max_tokens=8, **fields)["choices"]
        assert choice["message"]["reasoning_content"] and not choice["message"]["content"]
        assert prompt(thinker, **fields).endswith("<|im_start|>assistant\n<think>\n")
    assert [item.type for item in responses(thinker).output][0] == "reasoning"
    assert [block.type for block in messages(thinker).content] == ["thinking"]


def test_thoughts_of_a_grammars_own_are_told_apart_where_the_template_opens_none(thinker):
    grammar = 'root ::= "<think>\\nHm.\\n</think>\\n\\nFour."'
    [choice] = chat(thinker, grammar=grammar, chat_template_kwargs={"model_opens": True})["choices"]
    assert choice["message"]["reasoning_content"] == "Hm."
    assert choice["message"]["content"] == "Four."


def thought_tokens(usage):
    return usage["completion_tokens_details"]["reasoning_tokens"]


def test_usage_says_how_many_tokens_were_thoughts(thinker):
    for fields, share in (({}, 1), ({"choice": ["yes", "no"]}, 0)):
        usage = chat(thinker, max_tokens=9, n=2, **fields)["usage"]
        assert thought_tokens(usage) == share * usage["completion_tokens"]
        last = thinker.events("/v1/chat/completions", {
            **ASKED, "max_tokens": 9, "n": 2, "stream_options": {"include_usage": True}, **fields})[-2]
        assert thought_tokens(last["usage"]) == share * last["usage"]["completion_tokens"]
    # Thoughts that end: as many as the tokens that it takes to say them.
    fields = {"grammar": 'root ::= "<think>\\nHm.\\n</think>\\n\\nFour."', "logprobs": True,
              "chat_template_kwargs": {"model_opens": True}}
    whole = chat(thinker, **fields)
    said, expected = b"", 0
    for expected, token in enumerate(whole["choices"][0]["logprobs"]["content"], 1):
        said += bytes(token["bytes"])
        if b"</think>" in said:
            break
    assert 0 < expected == thought_tokens(whole["usage"]) < whole["usage"]["completion_tokens"]


def test_responses_count_thoughts_too(thinker):
    whole = responses(thinker)
    assert whole.usage.output_tokens_details.reasoning_tokens == whole.usage.output_tokens > 0
    last = list(responses(thinker, stream=True))[-1].response
    assert last.usage == whole.usage


@pytest.mark.parametrize("budget", [1, 6])
def test_a_spent_budget_ends_the_reasoning_and_the_model_answers(thinker, budget):
    fields = {"max_tokens": 40, "ignore_eos": True}
    free = chat(thinker, **fields)["choices"][0]["message"]["reasoning_content"]
    whole = chat(thinker, **fields, reasoning_budget_tokens=budget)
    message = whole["choices"][0]["message"]
    assert free.startswith(message["reasoning_content"]) and message["content"]
    mark = thinker.post("/tokenize", {"prompt": "</think>", "add_special_tokens": False}).json()
    assert thought_tokens(whole["usage"]) == budget + mark["count"]
    deltas = [part["delta"] for event in thinker.events(
        "/v1/chat/completions", {**ASKED, **fields, "thinking_budget_tokens": budget})[:-1]
        for part in event["choices"]]
    for name in ("reasoning_content", "content"):
        assert "".join(delta.get(name) or "" for delta in deltas) == message[name]
    [thought, text] = messages(thinker, thinking={"type": "enabled", "budget_tokens": budget}).content
    assert thought.thinking == message["reasoning_content"] and text.type == "text"
    items = responses(thinker, extra_body={"reasoning_budget_tokens": budget}).output
    assert [item.type for item in items] == ["reasoning", "message"]


def test_a_budget_leaves_answers_alone_that_do_not_reason(thinker):
    fields = {"max_tokens": 20, "chat_template_kwargs": {"model_opens": True}}
    assert chat(thinker, **fields, reasoning_budget_tokens=1)["choices"] == \
        chat(thinker, **fields)["choices"]
    assert chat(thinker, reasoning_budget_tokens=-1)["choices"] == chat(thinker)["choices"]
    [choice] = chat(thinker, reasoning_budget_tokens=1, regex="yes|no")["choices"]
    assert choice["message"]["content"] in ("yes", "no")
    for value in (-2, 1.5, "many"):
        answer = thinker.post("/v1/chat/completions", {**ASKED, "reasoning_budget_tokens": value})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "reasoning_budget_tokens"


@pytest.mark.parametrize("fields", [{"reasoning_effort": "none"}, {"reasoning_budget_tokens": 0},
                                    {"chat_template_kwargs": {"enable_thinking": False}}], ids=str)
def test_reasoning_that_is_off_is_closed_where_the_template_opens_it(thinker, fields):
    assert prompt(thinker, **fields).endswith("<|im_start|>assistant\n" + CLOSED)
    [choice] = chat(thinker, max_tokens=8, ignore_eos=True, **fields)["choices"]
    assert "reasoning_content" not in choice["message"] and choice["message"]["content"]


def test_messages_turn_reasoning_off(thinker):
    used = messages(thinker, thinking={"type": "disabled"})
    assert [block.type for block in used.content] == ["text"]
    answer = thinker.post("/v1/messages", {"model": "demo", "max_tokens": 1, **ASKED,
                                           "thinking": {"type": "some"}})
    assert answer.status_code == 400 and "thinking.type" in answer.json()["error"]["message"]
