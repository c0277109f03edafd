"""The page at / in headless Chromium, against the real daemon.

CHROMIUM names the browser (default: /usr/bin/chromium). Without it, or without playwright, the
tests are skipped, saying so.
"""

import functools
import http.server
import importlib.util
import json
import os
import pathlib
import re
import sys
import threading

import pytest
import requests

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "server"))
from conftest import (  # noqa: E402
    DEMO, PATIENCE_SECONDS, PLAIN, PROGRAM, ROOT, Daemon, write_with_template)

CHROMIUM = pathlib.Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
PATIENCE_MS = PATIENCE_SECONDS * 1000 / 5
STORY = "Tell me a story about a fox."

pytestmark = [
    pytest.mark.skipif(
        not PROGRAM.exists(), reason=f"{PROGRAM} is not built (LOCKSTEPD names another)"
    ),
    pytest.mark.skipif(
        not CHROMIUM.exists(), reason=f"{CHROMIUM} is not there (CHROMIUM names another)"
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("playwright") is None, reason="playwright is not installed"
    ),
]


def start(*options, model=DEMO):
    return Daemon(
        model, "--workers", "1", "--ranks", "2", *options).wait_until_ready()


@pytest.fixture(scope="module")
def served():
    running = start()
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield started
        started.close()


class Tab:
    """The page in a tab with storage of its own; what it asked for and complained about."""

    def __init__(self, browser, url, routes=None, **context):
        self.url = url
        self.context = browser.new_context(
            **{"viewport": {"width": 1280, "height": 800}, **context})
        self.context.set_default_timeout(PATIENCE_MS)
        self.page = self.context.new_page()
        self.requests = []
        self.complaints = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._note)
        for pattern, handler in (routes or {}).items():
            self.page.route(pattern, handler)
        self.page.goto(url)

    def _note(self, message):
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def ask(self, text):
        self.page.fill("#message", text)
        self.page.keyboard.press("Enter")

    def ask_for_the_likeliest(self):
        self.page.click("#show-parameters")
        self.page.fill("#parameter-temperature", "0")

    def wait_for_answer(self):
        """The last answer's view, once it is complete."""
        self.page.wait_for_selector("#log[aria-busy=false] .answer:last-child .acts")
        return self.page.locator(".answer").last

    def wait_until_live(self):
        self.page.wait_for_selector("#state[data-kind=ready]")


@pytest.fixture
def open_tab(browser, served):
    tabs = []

    def open_one(url=None, complaints=False, **more):
        tab = Tab(browser, url or served.url + "/", **more)
        tabs.append((tab, complaints))
        return tab

    yield open_one
    for tab, complaints in tabs:
        tab.context.close()
        assert complaints or tab.complaints == []
        assert all(asked.startswith(tab.url) for asked in tab.requests), tab.requests


def sse(*texts):
    """A streamed answer of these pieces."""
    events = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    events.append({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": len(texts)}})
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    return {"status": 200, "content_type": "text/event-stream", "body": body}


def answering(**answer):
    return {"**/v1/chat/completions": lambda route: route.fulfill(**answer)}


def fulfill(route, **answer):
    route.fulfill(status=200, **answer)


def failing(status, error, **headers):
    body = json.dumps({"error": {"type": "server_error", "param": None, "code": None, **error}})
    return answering(status=status, content_type="application/json", body=body, headers=headers)


# ---- How it is served


def test_every_file_is_served_with_strict_headers_and_a_tag(served):
    names = [path.name for path in (ROOT / "server/ui").iterdir()
             if path.suffix in (".js", ".css", ".svg")]
    assert len(names) > 5
    for path in ["/", *(f"/ui/{name}" for name in names)]:
        answer = served.get(path)
        source = "index.html" if path == "/" else path.removeprefix("/ui/")
        assert answer.status_code == 200, path
        assert answer.content == (ROOT / "server/ui" / source).read_bytes()
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-cache"
        tag = answer.headers["ETag"]
        again = served.get(path, headers={"If-None-Match": f'"other", W/{tag}'})
        assert (again.status_code, again.content) == (304, b""), path
        assert "Content-Length" not in again.headers
        assert served.get(path, headers={"If-None-Match": '"other"'}).status_code == 200
    assert served.get("/ui/nothing.js").status_code == 404
    assert served.get("/ui/..%2foptions.h").status_code == 404
    assert requests.head(served.url + "/").headers["ETag"] == served.get("/").headers["ETag"]


def test_without_ui_there_is_no_page():
    plain = start("--ui", "false")
    assert plain.get("/").status_code == 404
    assert plain.get("/ui/app.js").status_code == 404
    assert plain.stop() == 0


# ---- The chat


def test_a_question_is_answered_and_kept(open_tab):
    tab = open_tab()
    tab.wait_until_live()
    tab.ask_for_the_likeliest()
    tab.ask(STORY)
    answer = tab.wait_for_answer()
    text = answer.locator(".body").inner_text()
    assert len(text.split()) > 20
    assert re.search(r"16 prompt .*\+ \d+ generated tokens · [\d,.]+/s", answer.inner_text())
    assert "Answer complete" in tab.page.locator("#status").inner_text()
    tab.page.reload()
    assert tab.page.locator(".answer .body").inner_text() == text
    assert tab.page.locator(".user .body").inner_text() == STORY
    tab.page.click("#fresh")
    assert tab.page.locator(".turn").count() == 0
    tab.page.reload()
    assert tab.page.locator(".welcome").is_visible()


class Endless(http.server.BaseHTTPRequestHandler):
    """Streams one word and then waits until the client goes: an answer that only stop can end."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        event = {"choices": [{"index": 0, "delta": {"content": "word"}}]}
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.flush()
        if self.connection.recv(1) == b"":
            self.server.left.set()

    def log_message(self, *_):
        pass


def test_stop_ends_the_request_and_keeps_what_came(open_tab):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    server.left = threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    tab = open_tab(routes={"**/v1/chat/completions": lambda route: route.continue_(url=address)})
    for stop in [lambda: tab.page.keyboard.press("Escape"), lambda: tab.page.click("#stop")]:
        server.left.clear()
        tab.ask(STORY)
        tab.page.locator(".answer.streams:last-child .body", has_text="word").wait_for()
        assert not server.left.is_set()
        assert not tab.page.locator("#send").is_visible()
        stop()
        answer = tab.wait_for_answer()
        assert "stopped" in answer.locator(".facts").inner_text()
        assert answer.locator(".body").inner_text() == "word"
        assert server.left.wait(PATIENCE_SECONDS)
        assert tab.page.locator("#send").is_visible()
    server.shutdown()
    server.server_close()


def test_parameters_reach_the_request(open_tab):
    sent = []

    def answer(route):
        sent.append(route.request.post_data_json)
        route.fulfill(**sse("fine"))

    tab = open_tab(routes={"**/v1/chat/completions": answer})
    tab.ask("first")
    tab.wait_for_answer()
    assert set(sent[0]) == {"model", "messages", "stream", "stream_options"}
    tab.page.click("#show-parameters")
    values = {"temperature": 0.25, "top_p": 0.5, "top_k": 7, "max_tokens": 11, "seed": 42}
    for name, value in values.items():
        tab.page.fill(f"#parameter-{name}", str(value))
    tab.page.fill("#parameter-system", "Be brief.")
    tab.page.fill("#parameter-stop", "one\ntwo")
    tab.ask("second")
    tab.wait_for_answer()
    assert {name: sent[1][name] for name in values} == values
    assert sent[1]["stop"] == ["one", "two"]
    assert [(said["role"], said["content"]) for said in sent[1]["messages"]] == [
        ("system", "Be brief."), ("user", "first"), ("assistant", "fine"), ("user", "second")]
    tab.page.fill("#parameter-temperature", "9")
    tab.ask("third")
    assert len(sent) == 2  # the form says what is wrong with it
    assert tab.page.locator("#parameter-temperature:invalid").count() == 1
    assert tab.page.input_value("#message") == "third"


def test_edit_and_retry_ask_again(open_tab):
    sent = []

    def answer(route):
        sent.append([said["content"] for said in route.request.post_data_json["messages"]])
        route.fulfill(**sse(f"answer {len(sent)}"))

    tab = open_tab(routes={"**/v1/chat/completions": answer})
    tab.ask("one")
    tab.wait_for_answer()
    tab.ask("two")
    tab.wait_for_answer()
    tab.page.get_by_role("button", name="Retry").last.click()
    tab.page.wait_for_selector("text=answer 3")
    assert sent[2] == ["one", "answer 1", "two"]
    tab.page.locator(".user").first.hover()
    tab.page.get_by_role("button", name="Edit").first.click()
    tab.page.fill(".edited textarea", "uno")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("text=answer 4")
    assert sent[3] == ["uno"]
    assert tab.page.locator(".turn").count() == 2


def thinking(thoughts, *texts, finish="stop"):
    """A streamed answer with thoughts before it."""
    deltas = [{"content": ""}, *({"reasoning_content": part} for part in thoughts),
              *({"content": text} for text in texts)]
    events = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    events.append({"choices": [], "usage": {
        "prompt_tokens": 3, "completion_tokens": len(thoughts) + len(texts),
        "completion_tokens_details": {"reasoning_tokens": len(thoughts)}}})
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    return {"status": 200, "content_type": "text/event-stream", "body": body}


def test_thoughts_are_folded_kept_and_not_sent_back(open_tab):
    sent = []
    answers = [thinking(["Hm, <b>", "\n2?"], "Two", "."), thinking(["Cut in"], finish="length"),
               sse("Fine.")]

    def answer(route):
        sent.append([(said["role"], said["content"])
                     for said in route.request.post_data_json["messages"]])
        route.fulfill(**answers[len(sent) - 1])

    tab = open_tab(routes={"**/v1/chat/completions": answer})
    tab.ask("one")
    first = tab.wait_for_answer()
    assert first.locator(".body").inner_text() == "Two."
    assert "4 generated tokens (2 of thoughts)" in first.locator(".facts").inner_text()
    assert "first after" in first.locator(".facts").inner_text()
    thoughts = first.locator(".thoughts div")
    assert first.locator("summary").inner_text() == "Thoughts" and not thoughts.is_visible()
    first.locator("summary").focus()
    tab.page.keyboard.press("Enter")
    assert thoughts.is_visible() and thoughts.inner_text() == "Hm, <b>\n2?"
    for scheme in ("light", "dark"):
        tab.page.emulate_media(color_scheme=scheme)
        for selector in (".thoughts summary", ".thoughts div"):
            assert contrast(tab, selector) >= 4.5, (scheme, selector)
    tab.page.keyboard.press("Space")
    assert not thoughts.is_visible()
    # One that is cut inside its thoughts was an answer all the same: its question stays.
    tab.ask("two")
    second = tab.wait_for_answer()
    assert second.locator("summary").inner_text() == "Thoughts, and no answer"
    assert second.locator(".body").inner_text() == ""
    assert "cut at the most tokens" in second.locator(".facts").inner_text()
    tab.page.reload()
    assert tab.page.locator(".thoughts div").all_text_contents() == ["Hm, <b>\n2?", "Cut in"]
    tab.ask("three")
    tab.wait_for_answer()
    assert sent[2] == [("user", "one"), ("assistant", "Two."), ("user", "two"), ("assistant", ""),
                       ("user", "three")]


THINKS = """{% for message in messages %}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""


def test_a_model_that_thinks_is_seen_thinking(open_tab, tmp_path):
    """The bundled model under a template that opens its thoughts, which it never closes."""
    changed = write_with_template(THINKS, tmp_path / "thinks.gguf")
    thinker = start(model=changed)
    tab = open_tab(thinker.url + "/")
    tab.ask_for_the_likeliest()
    tab.page.fill("#parameter-max_tokens", "3")
    tab.ask(STORY)  # what is unfolded while it thinks, or later, stays so
    summary = tab.page.locator(".thoughts summary")
    summary.focus()
    tab.page.keyboard.press("Enter")
    first = tab.wait_for_answer()
    assert first.locator(".thoughts div").inner_text() != ""
    assert tab.page.evaluate("document.activeElement.tagName") == "SUMMARY"
    assert first.locator(".body").inner_text() == ""
    facts = first.locator(".facts").inner_text()
    assert re.search(r" 3 generated tokens.* · [\d,.]+/s · .*cut at the most tokens", facts)
    tab.ask("Why do leaves fall?")
    assert tab.wait_for_answer().locator(".thoughts").count() == 1
    assert tab.page.locator(".problem").count() == 0
    tab.context.close()  # which else complains that the daemon is gone
    assert thinker.stop() == 0


def test_a_model_without_a_template_continues_texts(open_tab):
    plain = start(model=PLAIN)
    tab = open_tab(plain.url + "/", complaints=True)  # the browser reports the 400 by itself
    tab.ask_for_the_likeliest()
    tab.ask("Once upon a time")
    answer = tab.wait_for_answer()
    assert len(answer.locator(".body").inner_text()) > 10
    assert tab.page.locator("#completes").is_visible()
    assert all("status of 400" in complaint for complaint in tab.complaints), tab.complaints
    tab.context.close()
    assert plain.stop() == 0


def test_a_question_waits_until_the_model_is_known(open_tab):
    held = []
    tab = open_tab(routes={"**/v1/models": lambda route: held.append(route)})
    tab.ask(STORY)
    tab.page.wait_for_selector("#log[aria-busy=true]")
    tab.page.keyboard.press("Escape")
    assert "stopped" in tab.wait_for_answer().locator(".facts").inner_text()
    tab.ask(STORY)
    tab.page.wait_for_selector("#log[aria-busy=true]")
    assert not any("completions" in asked for asked in tab.requests)
    held[0].continue_()
    assert tab.wait_for_answer().locator(".body").inner_text() != ""
    assert tab.page.locator(".problem").count() == 0


# ---- Nothing of an answer becomes markup

HOSTILE = """<script>window.hurt = 1</script> <img src=x onerror="window.hurt = 1">

# Head <b>ing</b>

[good](https://example.com/a_(b)) [bad](javascript:window.hurt=1) [data](data:text/html,x)
![picture](https://example.com/picture.png) <https://example.org>

- one **bold *both* words** and `co<i>de`
  - nested
1. first
2. second

| name | count |
| :--- | ---: |
| <svg onload=window.hurt=1> | 1 |

> quoted
> <iframe src="//example.com"></iframe>

```html
<script>window.hurt = 1</script>
```
"""


def test_markdown_is_shown_and_never_run(open_tab):
    tab = open_tab(routes=answering(**sse(*re.findall(r"[\s\S]{1,7}", HOSTILE))))
    tab.ask("<img src=x onerror=window.hurt=1>")
    body = tab.wait_for_answer().locator(".body")
    assert tab.page.evaluate("window.hurt") is None
    assert tab.page.locator("#log :is(script, img, svg, iframe, b, i)").count() == 0
    text = body.inner_text()
    for shown in ["<script>window.hurt = 1</script> <img src=x onerror=", "Head <b>ing</b>",
                  "[bad](javascript:window.hurt=1)", "<svg onload=window.hurt=1>", "co<i>de",
                  '<iframe src="//example.com"></iframe>']:
        assert shown in text, shown
    links = body.locator("a").evaluate_all("all => all.map((a) => [a.href, a.rel, a.textContent])")
    assert [link[0] for link in links] == [
        "https://example.com/a_(b)", "https://example.com/picture.png", "https://example.org/"]
    assert all(link[1] == "noopener noreferrer" for link in links)
    assert body.locator("ul > li > ul > li").inner_text() == "nested"
    assert body.locator("ol > li").all_inner_texts() == ["first", "second"]
    assert body.locator("strong").inner_text() == "bold both words"
    assert body.locator("strong em").inner_text() == "both"
    assert body.locator("td.end").inner_text() == "1"
    assert body.locator("h3").inner_text() == "Head <b>ing</b>"
    assert body.locator("pre code").inner_text() == "<script>window.hurt = 1</script>"
    assert tab.page.locator(".user .body").inner_text() == "<img src=x onerror=window.hurt=1>"


OPENERS = [
    "[", "*", "**a", "`a", "_a ", "[a](", "> ", "- ", "|", "~~x", "#", "http://a", "<a", "![", "\\",
    "***", "| ", "- a\n", "> a\n", "``` ", "`a``b", "*a **b", "1. ", "a_b", "**a *b",
]


def test_no_text_makes_markdown_slow(open_tab):
    tab = open_tab()
    times = tab.page.evaluate("""async (pieces) => {
      const {show_markdown} = await import("/ui/markdown.js");
      const times = {};
      for (const piece of pieces) {
        const text = piece.repeat(65536 / piece.length);
        const begin = performance.now();
        show_markdown(document.createElement("div"), text);
        times[piece] = performance.now() - begin;
      }
      return times;
    }""", OPENERS)
    print(times)
    # A walk per letter over the rest would take minutes.
    assert all(milliseconds < PATIENCE_MS for milliseconds in times.values()), times


# ---- Errors


def test_errors_are_said_with_what_to_do(open_tab):
    tab = open_tab(complaints=True, routes=failing(
        503, {"message": "All 8 places are taken", "code": "queue_full"}, **{"Retry-After": "7"}))
    tab.ask("Hello")
    problem = tab.page.locator(".problem")
    problem.wait_for()
    text = problem.inner_text()
    assert "The server is full" in text and "All 8 places are taken" in text
    assert re.search(r"asks to wait \d s", text)
    tab.page.unroute("**/v1/chat/completions")
    tab.page.route("**/v1/chat/completions", lambda route: route.fulfill(**sse("Now", " it works")))
    tab.page.get_by_role("button", name="Retry").click()
    assert tab.wait_for_answer().locator(".body").inner_text() == "Now it works"
    assert tab.page.locator(".problem").count() == 0
    # An error in the middle of a stream, and a stream that is cut.
    for body in ['data: {"choices":[{"index":0,"delta":{"content":"half"}}]}\n\n'
                 'data: {"error":{"message":"The engine failed","type":"server_error"}}\n\n',
                 'data: {"choices":[{"index":0,"delta":{"content":"half"}}]}\n\n']:
        tab.page.unroute("**/v1/chat/completions")
        tab.page.route("**/v1/chat/completions", functools.partial(
            fulfill, content_type="text/event-stream", body=body))
        tab.ask("Again")
        answer = tab.wait_for_answer()
        assert "half" in answer.locator(".body").inner_text()
        assert answer.locator(".problem").count() == 1


def test_a_key_is_asked_for_and_kept_in_the_tab_alone(open_tab):
    def guarded(route):
        if route.request.headers.get("authorization") == "Bearer secret":
            return route.continue_()
        error = {"message": "An API key is needed", "type": "authentication_error", "param": None,
                 "code": "invalid_api_key"}
        return route.fulfill(status=401, content_type="application/json",
                             headers={"WWW-Authenticate": "Bearer"},
                             body=json.dumps({"error": error}))

    tab = open_tab(complaints=True, routes={"**/v1/**": guarded, "**/metrics": guarded})
    tab.page.wait_for_selector("#key-dialog[open]")
    assert "An API key is needed" in tab.page.locator("#key-dialog").inner_text()
    tab.page.keyboard.press("Escape")
    tab.page.wait_for_selector("#key-dialog", state="hidden")
    tab.ask("What can you do?")  # asks again, and again after a wrong one, and then is answered
    for key in ["wrong", "secret"]:
        tab.page.wait_for_selector("#key-dialog[open]")
        assert tab.page.evaluate("document.activeElement.id") == "key"
        tab.page.keyboard.type(key)
        tab.page.keyboard.press("Enter")
    assert tab.wait_for_answer().locator(".body").inner_text() != ""
    assert tab.page.locator(".problem").count() == 0
    assert not tab.page.locator("#key-dialog").is_visible()
    tab.wait_until_live()
    assert tab.page.locator("#model").inner_text() == "lockstep-demo"
    kept = tab.page.evaluate("JSON.stringify(localStorage) + document.cookie")
    assert "secret" not in kept
    assert "secret" in tab.page.evaluate("JSON.stringify(sessionStorage)")
    assert all("401" in complaint for complaint in tab.complaints), tab.complaints


# ---- The live view


def test_the_live_view_shows_the_ranks_and_moves(open_tab, served):
    tab = open_tab()
    tab.wait_until_live()
    ranks = tab.page.locator(".rank")
    assert ranks.count() == 2
    for number in range(2):
        text = ranks.nth(number).inner_text()
        assert f"Rank {number}" in text and "1 worker" in text
        weights = served.metric("lockstep_rank_memory_bytes", rank=str(number), kind="weights")
        assert f"weights {weights / 2**20:.1f} MiB" in text
    assert tab.page.locator(".cells i").count() == int(served.metric("lockstep_kv_cache_pages"))
    assert "peak" not in tab.page.locator(".rate.generated").inner_text()
    tab.ask(STORY)
    tab.wait_for_answer()
    tab.page.wait_for_selector(".rate.generated .peak:not(:empty)")
    tab.page.wait_for_selector(".rate.prompt .peak:not(:empty)")
    tab.page.wait_for_selector(".rank >> text=of a pass")
    machine = tab.page.locator("#machine").inner_text()
    assert "Time of a pass" in machine and "First token, median" in machine


LOADING = """lockstep_model_load_progress_ratio{model="m"} 0.25
lockstep_model_load_bytes{model="m"} 2147483648
lockstep_kv_cache_pages{model="m",state="used"} 3
lockstep_kv_cache_pages{model="m",state="cached"} 5
lockstep_kv_cache_pages{model="m",state="free"} 1016
lockstep_rank_info{model="m",rank="0",node="0",workers="8"} 1
lockstep_rank_memory_bytes{model="m",rank="0",kind="weights"} 1073741824
lockstep_rank_wrong_node_bytes{model="m",rank="0"} 4194304
lockstep_requests_waiting{model="m"} 2
lockstep_requests_waiting_prompt_tokens{model="m"} 900
lockstep_prefix_cache_queries_total{model="m"} 400
lockstep_prefix_cache_hits_total{model="m"} 100
process_start_time_seconds 1
"""


def test_the_live_view_shows_loads_caches_and_what_lies_wrong(open_tab):
    tab = open_tab(routes={"**/metrics": lambda route: route.fulfill(
        status=200, content_type="text/plain", body=LOADING)})
    tab.page.wait_for_selector("#state[data-kind=loading]")
    assert tab.page.locator("#state").inner_text() == "loading 25 %"
    machine = tab.page.locator("#machine").inner_text()
    for shown in ["2 GiB read", "used 3", "cached 5", "free 1,016", "4 MiB on a wrong node",
                  "2 with 900 prompt tokens", "25 % of 400 tokens", "Each square is 4 pages"]:
        assert shown in machine, shown


def test_the_live_view_rests_while_nobody_looks_and_says_what_is_missing(open_tab):
    tab = open_tab(complaints=True,
                   routes={"**/metrics": lambda route: route.fulfill(status=404, body="")})
    tab.page.wait_for_selector("#machine .notice:visible")
    assert "--metrics false" in tab.page.locator("#machine .notice").inner_text()
    tab.page.unroute("**/metrics")
    tab.wait_until_live()
    tab.page.evaluate("""() => {
      Object.defineProperty(document, "hidden", {get: () => window.away, configurable: true});
      window.away = true;
      window.asked = 0;
      const fetch_it = window.fetch;
      window.fetch = (...all) => {
        ++window.asked;
        return fetch_it(...all);
      };
    }""")
    tab.page.wait_for_timeout(1500)  # more than the time between two readings
    assert tab.page.evaluate("window.asked") == 0
    tab.page.evaluate("window.away = false; document.dispatchEvent(new Event('visibilitychange'))")
    tab.page.wait_for_function("window.asked > 0")


# ---- Looks and keys


def contrast(tab, selector):
    """Of the element's text on what it stands on, by WCAG 2."""
    return tab.page.eval_on_selector(selector, """(node) => {
      const paint = (color) => {
        const canvas = Object.assign(document.createElement("canvas"), {width: 1, height: 1});
        const context = canvas.getContext("2d");
        context.fillStyle = color;
        context.fillRect(0, 0, 1, 1);
        return context.getImageData(0, 0, 1, 1).data;
      };
      const light = (color) => {
        const [r, g, b] = [...paint(color)].slice(0, 3).map((part) => part / 255)
          .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      let ground = node;
      while (paint(getComputedStyle(ground).backgroundColor)[3] === 0) {
        ground = ground.parentElement;
      }
      const both = [light(getComputedStyle(node).color),
        light(getComputedStyle(ground).backgroundColor)].sort((a, b) => b - a);
      return (both[0] + 0.05) / (both[1] + 0.05);
    }""")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_colours_are_readable_and_the_choice_is_kept(open_tab, scheme):
    tab = open_tab(color_scheme=scheme, routes=failing(503, {"message": "no"}), complaints=True)
    tab.wait_until_live()
    ground = "getComputedStyle(document.body).backgroundColor"
    before = tab.page.evaluate(ground)
    assert (sum(map(int, re.findall(r"\d+", before)[:3])) > 380) == (scheme == "light")
    tab.ask("Hello")
    tab.page.wait_for_selector(".problem")
    for selector in ["body", ".user .body", ".problem strong", ".problem p", ".acts .quiet",
                     "#send", ".hint", ".facts-list dt", ".rate .peak", "#show-machine", ".keys"]:
        assert contrast(tab, selector) >= 4.5, selector
    tab.page.click("#theme")  # from the system's colours to light, then to dark
    if scheme == "light":
        tab.page.click("#theme")
    changed = tab.page.evaluate(ground)
    assert changed != before
    tab.page.reload()
    assert tab.page.evaluate(ground) == changed


def test_the_keyboard_is_enough(open_tab):
    tab = open_tab(routes=answering(**sse("Fine, ", "thanks")))
    focused = "document.activeElement.id || document.activeElement.textContent.trim()"
    assert tab.page.evaluate(focused) == "message"
    tab.page.keyboard.type("two")
    tab.page.keyboard.press("Shift+Enter")
    tab.page.keyboard.type("lines")
    tab.page.keyboard.press("Enter")
    tab.wait_for_answer()
    assert tab.page.locator(".user .body").inner_text() == "two\nlines"
    assert tab.page.evaluate(focused) == "message"
    tab.page.locator(".skip").focus()
    seen = [tab.page.evaluate(focused)]
    while "close-side" not in seen and len(seen) < 40:
        tab.page.keyboard.press("Tab")
        seen.append(tab.page.evaluate(focused))
        ring = tab.page.evaluate("""() => {
          const style = getComputedStyle(document.activeElement);
          return document.activeElement.id === "message" || parseFloat(style.outlineWidth) >= 2;
        }""")
        assert ring, seen
    order = ["To the message field", "fresh", "show-machine", "show-parameters", "theme", "log",
             "Edit", "Retry", "Copy", "message", "send", "close-side"]
    assert seen == order, "each once, from top to bottom"
    tab.page.keyboard.press("Enter")
    assert not tab.page.locator("#side").is_visible()
    assert tab.page.evaluate(focused) == "show-machine"


def test_a_telephone_shows_all_of_it(open_tab):
    table = f"| a | b |\n|---|---|\n| {'long ' * 20} | {'x' * 200} |\n\n"
    code = f"```\n{'y' * 300}\n```"
    tab = open_tab(viewport={"width": 360, "height": 640}, routes=answering(**sse(table, code)))
    tab.wait_until_live()
    assert not tab.page.locator("#side").is_visible()
    tab.ask("x" * 200)
    tab.wait_for_answer()
    wide = "document.documentElement.scrollWidth - innerWidth"
    assert tab.page.evaluate(wide) <= 0
    assert tab.page.evaluate("log.scrollWidth - log.clientWidth") <= 0
    tab.page.click("#show-machine")
    assert tab.page.locator(".rank").first.is_visible()
    assert tab.page.evaluate(wide) <= 0
    tab.page.keyboard.press("Escape")
    assert tab.page.locator("#message").is_visible()


def test_motion_stops_where_it_is_not_wanted(open_tab):
    tab = open_tab(reduced_motion="reduce")
    moving = """() => {
      document.getElementById("log").insertAdjacentElement("beforeend", Object.assign(
        document.createElement("div"), {className: "streams"})).append(Object.assign(
        document.createElement("div"), {className: "body"}));
      return getComputedStyle(document.querySelector(".streams .body"), "::after").animationName;
    }"""
    assert tab.page.evaluate(moving) == "none"
