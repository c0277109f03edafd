// The conversation on the page: sends what is written, shows what comes.
import {Conversation} from "./conversation.js";
import {copy_button, element, number_text, rate_text, seconds_text, set_text} from "./dom.js";
import {show_markdown} from "./markdown.js";
import {ServerError, stream} from "./server.js";

const SUGGESTIONS = [
  "Tell me a story about a fox.",
  "Why do leaves fall?",
  "What can you do?",
];
const BURST_MS = 250;
const FINISHES = {
  length: "cut at the most tokens",
  stopped: "stopped",
  content_filter: "filtered",
};

function facts_text(facts) {
  const parts = [];
  if (facts.prompt !== undefined) {
    const cached = facts.cached > 0 ? ` (${number_text(facts.cached)} cached)` : "";
    const [prompt, generated] = [facts.prompt, facts.generated].map((count) => number_text(count));
    const thought = facts.thought > 0 ? ` (${number_text(facts.thought)} of thoughts)` : "";
    parts.push(`${prompt} prompt${cached} + ${generated} generated tokens${thought}`);
  }
  if (facts.rate) parts.push(`${rate_text(facts.rate)}/s`);
  if (facts.first_seconds) parts.push(`first after ${seconds_text(facts.first_seconds)}`);
  if (FINISHES[facts.finish]) parts.push(FINISHES[facts.finish]);
  return parts.join(" · ");
}

function problem_title({status, code}) {
  if (status === 0) return "No answer";
  if (status === 400) return "The server refuses this request";
  if (status === 401) return "An API key is needed";
  if (status === 429) return "Too many requests with this key";
  if (code === "model_loading") return "The model is still being loaded";
  if (code === "queue_full") return "The server is full";
  if (code === "shutting_down") return "The server is shutting down";
  if (status === 503) return "The server cannot take this now";
  if (status === 504) return "The time for this request is over";
  return `Error ${status}`;
}

// Rejects once `signal` is aborted, and never resolves.
function aborted(signal) {
  return new Promise((_, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason), {once: true});
  });
}

// Counts tokens and time of one answer while it streams.
class Stopwatch {
  constructor() {
    this.start = performance.now();
    this.first = null;
    this.last = this.start;
  }

  token() {
    this.last = performance.now();
    this.first ??= this.last;
  }

  // Tokens per second from the first to the last. What came in one burst says nothing of the time
  // between its tokens: then it is all of them over all the time.
  rate(count) {
    if (this.first === null) return null;
    const streamed = this.last - this.first;
    return streamed >= BURST_MS ? (1000 * (count - 1)) / streamed
      : (1000 * count) / (this.last - this.start);
  }
}

export class Chat {
  // `parts`: {log, form, input, send, stop, status, fresh, hint, latest}, elements of the page.
  // `model()` resolves to {name}, or to null where the server did not say it; `ask_key()` to whether
  // a key was given.
  constructor(parts, parameters, {model, ask_key, open_parameters}) {
    this.parts = parts;
    this.parameters = parameters;
    this.model = model;
    this.ask_key = ask_key;
    this.open_parameters = open_parameters;
    this.conversation = new Conversation();
    this.views = new Map();  // turn -> its element
    this.running = null;  // AbortController of the answer that streams
    this.completes = false;  // the model has no chat template: it continues texts
    this.follows = true;  // the log is scrolled to its end and stays there
    this.listen();
    this.show_all();
  }

  listen() {
    const {log, form, input, stop, fresh, latest} = this.parts;
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.submit();
    });
    input.addEventListener("input", () => this.fit(input));
    stop.addEventListener("click", () => this.stop());
    fresh.addEventListener("click", () => this.start_anew());
    log.addEventListener("scroll", () => {
      this.follows = log.scrollHeight - log.scrollTop - log.clientHeight < 48;
      latest.hidden = this.follows;
    });
    latest.addEventListener("click", () => {
      this.follows = true;
      this.follow();
      input.focus();
    });
    window.addEventListener("pagehide", () => this.conversation.save());
  }

  get is_running() {
    return this.running !== null;
  }

  // A text field as high as what is in it, up to what the style allows.
  fit(area) {
    area.style.height = "auto";
    area.style.height = `${area.scrollHeight + area.offsetHeight - area.clientHeight}px`;
  }

  follow() {
    const {log} = this.parts;
    if (this.follows) log.scrollTop = log.scrollHeight;
  }

  submit() {
    const {input} = this.parts;
    const text = input.value.trim();
    if (text === "" || this.is_running || !this.may_send()) return;
    input.value = "";
    this.fit(input);
    this.say(text);
  }

  // Whether the parameters can be sent; else shows the form.
  may_send() {
    if (this.parameters.is_valid) return true;
    this.open_parameters();
    return this.parameters.check();
  }

  stop() {
    this.running?.abort();
    this.parts.input.focus();
  }

  start_anew() {
    this.running?.abort();
    this.running = null;
    this.set_running(false);
    this.conversation.clear();
    this.show_all();
    this.parts.input.focus();
  }

  say(text) {
    this.conversation.add("user", text);
    this.follows = true;
    return this.answer();
  }

  // Asks for the answer to the last turn.
  async answer() {
    const turn = this.conversation.add("assistant", "");
    const control = new AbortController();
    this.running = control;
    this.show_all();
    this.set_running(true);
    set_text(this.parts.status, "Answering");
    const watch = new Stopwatch();
    try {
      await this.receive_with_key(turn, control.signal, watch);
    } catch (error) {
      if (error.name === "AbortError") turn.facts = {...turn.facts, finish: "stopped"};
      else turn.problem = error instanceof ServerError ? error : new ServerError(0, String(error));
    }
    this.finish(turn, control, watch);
  }

  finish(turn, control, watch) {
    const {facts = {}} = turn;
    const count = facts.generated ?? facts.events ?? 0;
    turn.facts = {...facts, rate: watch.rate(count)};
    if (watch.first !== null) turn.facts.first_seconds = (watch.first - watch.start) / 1000;
    if (this.running === control) {
      this.running = null;
      this.set_running(false);
      set_text(this.parts.status, turn.problem ? problem_title(turn.problem)
        : `Answer complete. ${facts_text(turn.facts)}`);
    }
    if (!this.conversation.turns.includes(turn)) return;  // a new chat was begun
    this.conversation.save();
    this.show_turn(turn);
  }

  async receive_with_key(turn, signal, watch) {
    try {
      await this.receive_in_some_way(turn, signal, watch);
    } catch (error) {
      if (error.status !== 401 || !(await this.ask_key(error.message))) throw error;
      await this.receive_in_some_way(turn, signal, watch);
    }
  }

  async receive_in_some_way(turn, signal, watch) {
    if (!this.completes) {
      try {
        return await this.receive(turn, signal, watch);
      } catch (error) {
        const cannot_chat = error.status === 400 && error.parameter === "messages" &&
          /no chat template/.test(error.message);
        if (!cannot_chat) throw error;
        this.completes = true;
        this.show_hint();
      }
    }
    return this.receive(turn, signal, watch);
  }

  async request(signal) {
    const model = await Promise.race([this.model(), aborted(signal)]);
    const common = {
      model: model?.name ?? "",
      stream_options: {include_usage: true},
      ...this.parameters.request(),
    };
    if (this.completes) return ["/v1/completions", {...common, prompt: this.conversation.text()}];
    const messages = this.conversation.messages(this.parameters.system_prompt);
    return ["/v1/chat/completions", {...common, messages}];
  }

  async receive(turn, signal, watch) {
    turn.facts = {events: 0};
    for await (const event of stream(...await this.request(signal), signal)) {
      const choice = event.choices?.[0];
      const text = choice?.delta?.content ?? choice?.text ?? "";
      const thoughts = choice?.delta?.reasoning_content ?? "";
      if (thoughts !== "") turn.thoughts = (turn.thoughts ?? "") + thoughts;
      if (text !== "" || thoughts !== "") {
        turn.content += text;
        ++turn.facts.events;
        watch.token();
        this.show_soon(turn, watch);
      }
      if (choice?.finish_reason) turn.facts.finish = choice.finish_reason;
      if (event.usage) {
        turn.facts.prompt = event.usage.prompt_tokens;
        turn.facts.generated = event.usage.completion_tokens;
        turn.facts.cached = event.usage.prompt_tokens_details?.cached_tokens ?? 0;
        turn.facts.thought = event.usage.completion_tokens_details?.reasoning_tokens ?? 0;
      }
    }
  }

  // At most once a frame, however fast tokens come.
  show_soon(turn, watch) {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      const view = this.views.get(turn);
      if (!view || !this.is_running) return;
      this.show_thoughts(view, turn, true);
      show_markdown(view.querySelector(".body"), turn.content);
      const rate = watch.rate(turn.facts.events);
      const facts = rate ? `${number_text(turn.facts.events)} tokens · ${rate_text(rate)}/s` : "";
      set_text(view.querySelector(".facts"), facts);
      this.follow();
    });
  }

  set_running(running) {
    const {log, send, stop, input} = this.parts;
    log.setAttribute("aria-busy", String(running));
    const had_focus = [send, stop].includes(document.activeElement);
    send.hidden = running;
    stop.hidden = !running;
    if (had_focus) (running ? stop : input).focus();
    for (const button of log.querySelectorAll("[data-idle]")) button.disabled = running;
  }

  show_hint() {
    this.parts.hint.hidden = !this.completes;
  }

  // The log as the conversation is now; what is on the page already stays.
  show_all() {
    const {log} = this.parts;
    const turns = new Set(this.conversation.turns);
    for (const [turn, view] of this.views) {
      if (turns.has(turn)) continue;
      view.remove();
      this.views.delete(turn);
    }
    log.querySelector(".welcome")?.remove();
    if (turns.size === 0) log.append(this.welcome());
    for (const turn of turns) {
      if (!this.views.has(turn)) this.show_turn(turn);
    }
    this.show_hint();
    this.follow();
  }

  welcome() {
    const suggestions = SUGGESTIONS.map((text) =>
      element("li", {}, element("button", {type: "button",
        onclick: () => this.may_send() && this.say(text)}, text)));
    return element("div", {class: "welcome"},
      element("h2", {}, "Ask something"),
      element("p", {}, "Answers come from this machine. The conversation is kept in this browser ",
        "and goes to no other server."),
      element("ul", {"aria-label": "Suggestions"}, ...suggestions));
  }

  show_turn(turn) {
    const view = turn.role === "user" ? this.user_view(turn) : this.answer_view(turn);
    const there = this.views.get(turn);
    if (there) this.replace_view(there, view);
    else this.parts.log.append(view);
    this.views.set(turn, view);
    this.follow();
  }

  // Thoughts that somebody has unfolded, or stands on, stay so.
  replace_view(there, view) {
    const [before, after] = [there, view].map((one) => one.querySelector(".thoughts"));
    const had_focus = before?.contains(document.activeElement);
    if (before && after) after.open = before.open;
    there.replaceWith(view);
    if (had_focus) after?.firstChild.focus({preventScroll: true});
  }

  // The block of thoughts in the view of an answer, once there are some.
  show_thoughts(view, turn, streams) {
    if (!turn.thoughts) return;
    let block = view.querySelector(".thoughts");
    if (!block) {
      block = element("details", {class: "thoughts"}, element("summary"), element("div"));
      view.prepend(block);
    }
    const thinks = streams && turn.content === "";
    const cut = !streams && turn.content === "";
    set_text(block.firstChild, thinks ? "Thinking" : cut ? "Thoughts, and no answer" : "Thoughts");
    set_text(block.lastChild, turn.thoughts);
  }

  action(label, act) {
    return element("button", {type: "button", class: "quiet", "data-idle": true,
      disabled: this.is_running, onclick: act}, label);
  }

  user_view(turn) {
    return element("article", {class: "turn user", "aria-label": "You"},
      element("div", {class: "body"}, turn.content),
      element("footer", {}, this.action("Edit", () => this.edit(turn))));
  }

  answer_view(turn) {
    const body = element("div", {class: "body"});
    show_markdown(body, turn.content);
    const streams = this.is_running && turn === this.conversation.turns.at(-1);
    const footer = element("footer", {}, element("span", {class: "facts"}));
    if (!streams) {
      set_text(footer.firstChild, facts_text(turn.facts ?? {}));
      footer.append(element("span", {class: "acts"},
        this.action("Retry", () => this.retry(turn)),
        turn.content !== "" ? copy_button(() => turn.content) : null));
    }
    const view = element("article", {class: `turn answer${streams ? " streams" : ""}`,
      "aria-label": "Answer"}, body, turn.problem ? this.problem_view(turn) : null, footer);
    this.show_thoughts(view, turn, streams);
    return view;
  }

  problem_view(turn) {
    const {problem} = turn;
    const parameter = problem.parameter ? ` (${problem.parameter})` : "";
    const wait = element("p", {class: "wait"});
    const view = element("div", {class: "problem", role: "alert"},
      element("strong", {}, problem_title(problem)),
      element("p", {}, `${problem.message}${parameter}`), wait);
    if (problem.retry_after_seconds !== null) this.count_down(wait, problem.retry_after_seconds);
    return view;
  }

  count_down(node, seconds) {
    const end = performance.now() + seconds * 1000;
    const show = () => {
      const left = Math.ceil((end - performance.now()) / 1000);
      set_text(node, left > 0 ? `The server asks to wait ${number_text(left)} s.`
        : "It may be tried again now.");
      if (left > 0 && (node.isConnected || left > seconds - 1)) setTimeout(show, 1000);
    };
    node.setAttribute("aria-live", "off");
    show();
  }

  retry(turn) {
    if (this.is_running || !this.may_send()) return;
    this.conversation.cut(turn);
    this.follows = true;
    this.parts.input.focus();
    this.answer();
  }

  // The turn becomes a field; sending it drops what came after.
  edit(turn) {
    if (this.is_running) return;
    const view = this.views.get(turn);
    const area = element("textarea", {"aria-label": "Edit your message", rows: 1});
    area.value = turn.content;
    const leave = () => {
      this.show_turn(turn);
      this.views.get(turn).querySelector("button").focus();
    };
    const send = () => {
      const text = area.value.trim();
      if (text === "" || this.is_running || !this.may_send()) return;
      this.conversation.cut(turn);
      this.parts.input.focus();
      this.say(text);
    };
    area.addEventListener("input", () => this.fit(area));
    area.addEventListener("keydown", (event) => {
      if (event.isComposing || event.shiftKey) return;
      if (event.key === "Escape") leave();
      else if (event.key === "Enter") send();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    view.classList.add("edited");
    view.replaceChildren(area, element("footer", {},
      element("button", {type: "button", class: "quiet", onclick: leave}, "Cancel"),
      element("button", {type: "button", class: "primary", onclick: send}, "Send")));
    this.fit(area);
    area.focus();
  }
}
