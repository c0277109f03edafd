"""Tools on the real daemon: the bundled model under the chat templates of families that know them.

It cannot call tools by itself; tool_choice makes it, by constrained sampling."""

import json

import anthropic
import jsonschema
import pytest

from conftest import DEMO, FIXTURES, Daemon, write_with_template
from openai_schema import check_error

TEMPLATES = FIXTURES / "chat_templates"
FAMILIES = {
    "qwen": "hermes.jinja",
    "llama": "headers.jinja",
    "mistral": "brackets.jinja",
    "mistral-names": "names.jinja",
    "gpt-oss": "channels.jinja",
    "glm": "keys_and_values.jinja",
    "qwen-coder": "parameters.jinja",
    "kimi": "sections.jinja",
    "minimax": "invocations.jinja",
    "gemma-4": "literals.jinja",
    "lfm2": "keywords.jinja",
    "cohere": "actions.jinja",
    "granite": "unsaid.jinja",  # takes tools and writes no calls
    "minimax-m3": "elements.jinja",
    "minicpm": "quotes.jinja",
    "muse": "recipients.jinja",
    "functionary": "arrows.jinja",
    "solar": "identifiers.jinja",
    "firefunction": "texts.jinja",
    "smollm": "signatures.jinja",  # the same
    "cohere-apart": "actions.jinja",  # beside a template that knows no tools
    "general": None,  # the bundled template, which knows no tools
    "strict": None,
}
# Knows no tools, takes no system message, and wants turns that alternate.
STRICT = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for message in messages %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('turns must alternate') }}{% endif %}"
    "{{ message.role + ': ' + message.content + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}")
SCHEMA = {"type": "object", "additionalProperties": False, "required": ["city", "days"],
          "properties": {"city": {"enum": ["Bern", "Z\u00fcrich"]}, "days": {"enum": [1, 2, 3]}}}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The weather",
                                            "parameters": SCHEMA}}
NOW = {"type": "function", "function": {"name": "now"}}
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """A daemon whose model has the family's chat template, and a context that holds its tools."""
    changed = tmp_path_factory.mktemp("models") / f"{request.param}.gguf"
    if request.param == "general":
        changed = DEMO
    else:
        name = FAMILIES[request.param]
        template = STRICT if name is None else (TEMPLATES / name).read_text()
        if request.param == "cohere-apart":
            template = [{"name": "default", "template": STRICT},
                        {"name": "tool_use", "template": template}]
        write_with_template(template, changed)
    running = Daemon(changed, "--served-model-name", "demo", "--context", "4096", "--workers", "1")
    running.wait_until_ready()
    yield request.param, running
    assert running.stop() == 0


def ask(daemon, **fields):
    return daemon.post("/v1/chat/completions", {
        "model": "demo", "messages": MESSAGES, "tools": [WEATHER, NOW], "temperature": 0,
        "max_tokens": 200, **fields})


def calls_of(answer):
    assert answer.status_code == 200, answer.text
    [choice] = answer.json()["choices"]
    assert choice["finish_reason"] == "tool_calls", choice
    assert choice["message"]["content"] is None
    return choice["message"]["tool_calls"]


def test_a_named_function_is_called_with_what_its_schema_asks_for(family):
    named = {"type": "function", "function": {"name": "get_weather"}}
    [call] = calls_of(ask(family[1], tool_choice=named, parallel_tool_calls=False))
    assert call["type"] == "function" and call["id"]
    assert call["function"]["name"] == "get_weather"
    jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)


def test_a_required_call_is_one_of_the_functions(family):
    calls = calls_of(ask(family[1], tools=[WEATHER], tool_choice="required",
                         parallel_tool_calls=False))
    assert [call["function"]["name"] for call in calls] == ["get_weather"]


def test_streamed_deltas_are_the_whole_answer(family):
    _, daemon = family
    fields = {"model": "demo", "messages": MESSAGES, "tools": [WEATHER], "temperature": 0,
              "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 200}
    [whole] = calls_of(daemon.post("/v1/chat/completions", fields))
    deltas = [part for event in daemon.events("/v1/chat/completions", fields)[:-1]
              for part in event["choices"]]
    assert deltas[-1]["finish_reason"] == "tool_calls"
    parts = [call for part in deltas for call in part["delta"].get("tool_calls", [])]
    assert parts[0]["id"] and parts[0]["type"] == "function" and parts[0]["index"] == 0
    assert parts[0]["function"] == {"name": "get_weather", "arguments": ""}
    assert len(parts) > 2
    arguments = "".join(part["function"]["arguments"] for part in parts)
    assert arguments == whole["function"]["arguments"]
    assert not any(part["delta"].get("content") for part in deltas)


def test_openais_client_puts_the_stream_together(family):
    client = family[1].client(max_retries=0)
    with client.chat.completions.stream(
            model="demo", messages=MESSAGES, tools=[WEATHER], tool_choice="required",
            parallel_tool_calls=False, temperature=0, max_tokens=200) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.tool_calls[0].function.name == "get_weather"
    jsonschema.validate(json.loads(message.tool_calls[0].function.arguments), SCHEMA)


def test_a_turn_with_calls_and_results_goes_on(family):
    _, daemon = family
    call = calls_of(ask(daemon, tool_choice="required", tools=[WEATHER],
                        parallel_tool_calls=False))[0]
    history = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]},
               {"role": "tool", "tool_call_id": call["id"], "content": "21 degrees"}]
    answer = ask(daemon, messages=history, max_tokens=4)
    assert answer.status_code == 200, answer.text
    text = daemon.post("/apply-template", {"model": "demo", "messages": history,
                                           "tools": [WEATHER]}).json()["prompt"]
    assert "21 degrees" in text and "get_weather" in text and "Bern" in text


SIGNS = {"mistral-names": "[TOOL_CALLS]get_weather[ARGS]{",
         "glm": "<tool_call>get_weather\n<arg_key>",
         "gpt-oss": " to=functions.get_weather<|channel|>",
         "minimax": "<invoke name=\"get_weather\">",
         "qwen-coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\nBern\n</parameter>",
         "kimi": "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{",
         "gemma-4": "<|tool_call>call:get_weather{city:<|\"|>Bern<|\"|>,days:2}<tool_call|>",
         "lfm2": "<|tool_call_start|>[get_weather(city='Bern', days=2)]<|tool_call_end|>",
         "cohere": "{\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": {",
         "cohere-apart": "{\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": {",
         "granite": "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": "
                    "{\"city\":\"Bern\",\"days\":2}}]",
         "minimax-m3": "]<]minimax[>[<invoke name=\"get_weather\">]<]minimax[>[<city>Bern"
                       "]<]minimax[>[</city>]<]minimax[>[<days>2]<]minimax[>[</days>",
         "minicpm": "<function name=\"get_weather\"><param name=\"city\">Bern</param>",
         "muse": " to=get_weather<|message|><atem:function_calls>\n<atem:invoke",
         "functionary": ">>>get_weather\n{\"city\":\"Bern\",\"days\":2}",
         "solar": "<|tool_call:name|>get_weather<|tool_call:args|>{",
         "firefunction": " functools[{\"name\": \"get_weather\", \"arguments\": {",
         "smollm": "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": "
                   "{\"city\":\"Bern\",\"days\":2}}\n</tool_call>"}


@pytest.mark.parametrize("family", SIGNS, indirect=True)
def test_earlier_calls_are_written_as_the_family_writes_them(family):
    name, daemon = family
    call = {"id": "c", "type": "function",
            "function": {"name": "get_weather", "arguments": json.dumps({"city": "Bern", "days": 2})}}
    history = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]},
               {"role": "tool", "tool_call_id": "c", "content": "21 degrees"}]
    # NOW has no description.
    assert SIGNS[name] in rendered(daemon, messages=history)
    assert not any("in a general form" in line for line in daemon.log)


HEADS = {"muse": "<|start|>assistant to=user<|message|>", "solar": "<|begin|>assistant<|content|>",
         "functionary": "assistant<|end_header_id|>\n\n>>>all\n"}


@pytest.mark.parametrize("family", HEADS, indirect=True)
def test_an_answer_that_is_held_to_a_form_begins_behind_its_mark(family):
    name, daemon = family
    held = {"tools": None, "structured_outputs": {"choice": ["yes", "no"]}}
    assert rendered(daemon, **held).endswith(HEADS[name])
    message = ask(daemon, **held).json()["choices"][0]["message"]
    assert message["content"] in ("yes", "no") and "reasoning_content" not in message


@pytest.mark.parametrize("family", ["solar"], indirect=True)
def test_a_model_that_knows_no_effort_of_none_is_asked_for_its_least(family):
    _, daemon = family
    closed = "<|begin|>assistant<|think|><|end|><|begin|>assistant"
    for off in ({"reasoning_effort": "none"}, {"reasoning_budget_tokens": 0},
                {"chat_template_kwargs": {"enable_thinking": False}}):
        assert rendered(daemon, **off).endswith(closed), off
    for on in ({}, {"reasoning_effort": "high"},
               {"chat_template_kwargs": {"reasoning_effort": "high", "enable_thinking": False}}):
        assert not rendered(daemon, **on).endswith(closed), on


@pytest.mark.parametrize("family", ["functionary", "muse"], indirect=True)
def test_functions_whose_names_stand_for_someone_else_are_refused(family):
    name, daemon = family
    taken = {"functionary": "all", "muse": "user"}[name]
    answer = ask(daemon, tools=[{"type": "function", "function": {"name": taken}}])
    assert answer.status_code == 400 and f'"{taken}"' in answer.json()["error"]["message"]


@pytest.mark.parametrize("family", ["firefunction"], indirect=True)
def test_functions_come_as_a_text_with_the_date(family):
    _, daemon = family
    prompt = rendered(daemon, chat_template_kwargs={"datetime": "Monday"})
    assert "\n        \"name\": \"now\"\n" in prompt and "Today is Monday." in prompt
    assert "Functions:\n\nToday is 2" in rendered(daemon, tools=None)


@pytest.mark.parametrize("family", ["gpt-oss"], indirect=True)
def test_turns_of_messages_are_answered_in_the_final_one(family):
    _, daemon = family
    answer = ask(daemon, tools=None, structured_outputs={"choice": ["yes", "no"]})
    message = answer.json()["choices"][0]["message"]
    assert message["content"] in ("yes", "no") and "reasoning_content" not in message
    held = {"tools": None, "structured_outputs": {"choice": ["yes"]}}
    assert rendered(daemon, **held).endswith("<|start|>assistant<|channel|>final<|message|>")
    thought = {"role": "assistant", "content": "", "reasoning_content": "I look.", "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "now", "arguments": "{}"}}]}
    again = rendered(daemon, reasoning_effort="high", messages=[
        *MESSAGES, thought, {"role": "tool", "tool_call_id": "c", "content": "noon"}])
    assert "Reasoning: high<|end|>" in again
    assert "<|channel|>analysis<|message|>I look.<|end|>" in again
    assert rendered(daemon, messages=[*MESSAGES, {"role": "assistant", "content": "So"}],
                    continue_final_message=True).endswith("<|channel|>final<|message|>So")


def test_without_a_choice_to_call_there_are_no_tools(family):
    _, daemon = family
    none = daemon.post("/apply-template", {"model": "demo", "messages": MESSAGES,
                                           "tools": [WEATHER], "tool_choice": "none"}).json()
    plain = daemon.post("/apply-template", {"model": "demo", "messages": MESSAGES}).json()
    told = daemon.post("/apply-template", {"model": "demo", "messages": MESSAGES,
                                           "tools": [WEATHER]}).json()
    assert none == plain != told


def test_responses_call_functions(family):
    client = family[1].client(max_retries=0)
    tool = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True}
    fields = {"model": "demo", "input": "Hi", "tools": [tool], "tool_choice": "required",
              "temperature": 0, "parallel_tool_calls": False, "max_output_tokens": 200}
    whole = client.responses.create(**fields)
    [item] = whole.output
    assert item.type == "function_call" and item.name == "get_weather" and item.call_id
    events = list(client.responses.create(**fields, stream=True))
    deltas = [event.delta for event in events
              if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == item.arguments
    assert events[-1].response.output[0].arguments == item.arguments
    more = client.responses.create(
        **{**fields, "tool_choice": "auto", "max_output_tokens": 4, "input": [
            {"role": "user", "content": "Hi"}, item.model_dump(exclude_none=True),
            {"type": "function_call_output", "call_id": item.call_id, "output": "21 degrees"}]})
    assert more.usage.input_tokens > whole.usage.input_tokens


def test_messages_use_tools(family):
    client = anthropic.Anthropic(base_url=family[1].url, api_key="none", max_retries=0)
    fields = {"model": "demo", "max_tokens": 200, "messages": MESSAGES,
              "tools": [{"name": "get_weather", "input_schema": SCHEMA}],
              "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
              "extra_body": {"temperature": 0}}
    whole = client.messages.create(**fields)
    assert whole.stop_reason == "tool_use"
    [block] = whole.content
    jsonschema.validate(block.input, SCHEMA)
    with client.messages.stream(**fields) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use" and final.content[0].input == block.input
    more = client.messages.create(**{**fields, "tool_choice": {"type": "auto"}, "max_tokens": 4,
                                     "messages": [
        *MESSAGES, {"role": "assistant", "content": [block.model_dump(exclude_none=True)]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id,
                                      "content": "21 degrees"}]}]})
    # What was found in the prefix cache is counted apart.
    def prompt(usage):
        return usage.input_tokens + (usage.cache_read_input_tokens or 0)
    assert prompt(more.usage) > prompt(whole.usage)


def test_a_schema_and_tools_are_alternatives(family):
    answer = ask(family[1], response_format={"type": "json_schema", "json_schema": {
        "name": "n", "schema": {"enum": ["yes"]}}}, tools=[WEATHER])
    assert answer.status_code == 200, answer.text
    message = answer.json()["choices"][0]["message"]
    assert message["content"] == '"yes"' or message["tool_calls"]


def test_tools_that_are_wrong_are_refused_by_their_place(chat_daemon):
    def tool(name="f", **more):
        return {"type": "function", "function": {"name": name, **more}}

    for fields, place in (
            ({"tools": ["x"]}, "tools[0]"), ({"tools": [{"type": "x"}]}, "tools[0].type"),
            ({"tools": [{"type": "function"}]}, "tools[0].function"),
            ({"tools": [tool("")]}, "tools[0].function.name"),
            ({"tools": [tool("a b")]}, "tools[0].function.name"),
            ({"tools": [tool("x" * 65)]}, "tools[0].function.name"),
            ({"tools": [tool(), tool()]}, "tools[1].function.name"),
            ({"tools": [tool(parameters=5)]}, "tools[0].function.parameters"),
            ({"tools": [tool(f"f{i}") for i in range(129)]}, "tools"),
            ({"tools": None, "tool_choice": "required"}, "tool_choice"),
            ({"tools": [tool()], "tool_choice": "some"}, "tool_choice"),
            ({"tools": [tool()], "tool_choice": {"type": "function",
                                                 "function": {"name": "g"}}}, "tool_choice"),
            ({"parallel_tool_calls": 1}, "parallel_tool_calls")):
        check_error(ask(chat_daemon, **fields), 400, place)


def rendered(daemon, **fields):
    answer = daemon.post("/apply-template", {"messages": MESSAGES, "tools": [WEATHER, NOW], **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()["prompt"]


def general(family):
    name, daemon = family
    if FAMILIES[name] is not None:
        pytest.skip("its template knows tools")
    return daemon


def test_a_template_without_tools_is_told_of_them_and_the_log_says_so_once(family):
    daemon = general(family)
    prompt = rendered(daemon)
    assert '{"name":"get_weather","description":"The weather","parameters":' in prompt
    assert '{"name":"now"}' in prompt and "<tool_call>" in prompt
    assert prompt.index("get_weather") < prompt.index("Hi")
    assert "Answer with a call of now." in rendered(
        daemon, tool_choice={"type": "function", "function": {"name": "now"}})
    assert "one call at a time" in rendered(daemon, parallel_tool_calls=False)
    assert "get_weather" not in rendered(daemon, tool_choice="none")
    ask(daemon, max_tokens=1)
    daemon.wait_until_logged("in a general form")
    assert sum("in a general form" in line for line in daemon.log) == 1


def test_calls_and_results_are_turns_of_text_that_alternate(family):
    daemon = general(family)
    calls = [{"id": f"c{index}", "type": "function",
              "function": {"name": "get_weather", "arguments": json.dumps({"city": city})}}
             for index, city in enumerate(("Bern", "Z\u00fcrich"))]
    history = [*MESSAGES, {"role": "assistant", "content": "Let me see.", "tool_calls": calls},
               {"role": "tool", "tool_call_id": "c1", "content": "19 degrees"},
               {"role": "tool", "tool_call_id": "c0", "content": "21 \"degrees\""},
               {"role": "user", "content": "And?"}]
    prompt = rendered(daemon, messages=history)
    texts = ["Let me see.\n<tool_call>\n" + '{"name": "get_weather", "arguments": {"city":"Bern"}}',
             '{"name": "get_weather", "arguments": {"city":"Z\u00fcrich"}}\n</tool_call>',
             '<tool_response>\n{"name":"get_weather","content":"19 degrees"}\n</tool_response>',
             '{"name":"get_weather","content":"21 \\"degrees\\""}\n</tool_response>\n\nAnd?']
    places = [prompt.index(text) for text in texts]
    assert places == sorted(places)
    # Results at the end, and a conversation with calls but no tools any more.
    for messages in (history[:-1], [*history, {"role": "assistant", "content": "Warm."},
                                    {"role": "user", "content": "Thanks"}]):
        assert daemon.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1}
                           ).status_code == 200


def test_several_calls_are_told_apart_where_the_template_knows_none(family):
    daemon = general(family)
    nothing = {"type": "object", "properties": {}, "additionalProperties": False}
    now = {"type": "function", "function": {"name": "now", "parameters": nothing}}
    answer = ask(daemon, tool_choice="required", tools=[now], max_tokens=400)
    calls = answer.json()["choices"][0]["message"]["tool_calls"]
    assert calls and {call["function"]["name"] for call in calls} == {"now"}
    assert len({call["id"] for call in calls}) == len(calls)
