// What the machine is doing, read off GET /metrics once a second while somebody looks.
import {
  bytes_text, element, number_text, rate_text, seconds_text, set_text, share_text, svg_element,
} from "./dom.js";
import {growth, quantile, ratio, Reading} from "./metrics.js";
import {request} from "./server.js";

const PERIOD_MS = 1000;
const KEPT = 120;  // readings: two minutes
const RATE_READINGS = 2;  // a rate is the mean of as many seconds
const RANK_READINGS = 15;
const CELLS_MAX = 256;
const CHART = {width: 300, height: 44};

const MEMORY = [["weights", "weights"], ["kv", "KV"], ["scratch", "scratch"]];
const PAGES = [["huge_1gib", "1 GiB pages"], ["huge_2mib", "2 MiB pages"],
  ["transparent", "transparent huge pages"], ["small", "4 KiB pages"]];
const ENDS = [["stop", "stop"], ["length", "length"], ["cancelled", "cancelled"],
  ["error", "error"], ["deadline", "deadline"], ["invalid_request", "invalid"]];

// Rows of a label and a figure; a row that has nothing to say is not shown.
class Facts {
  constructor(...rows) {
    this.rows = new Map();
    this.node = element("dl", {class: "facts-list"});
    for (const [name, label] of rows) {
      const value = element("dd");
      const row = element("div", {hidden: true}, element("dt", {}, label), value);
      this.rows.set(name, {row, value});
      this.node.append(row);
    }
  }

  show(name, text) {
    const {row, value} = this.rows.get(name);
    row.hidden = text === null;
    if (text !== null) set_text(value, text);
  }

  mark(name, is_bad) {
    this.rows.get(name).value.classList.toggle("bad", is_bad);
  }
}

// A rate with its last two minutes.
class Rate {
  constructor(label, kind) {
    this.figure = element("strong", {}, "–");
    this.peak = element("span", {class: "peak"});
    this.line = svg_element("path", {class: "line"});
    this.area = svg_element("path", {class: "area"});
    this.chart = svg_element("svg", {viewBox: `0 0 ${CHART.width} ${CHART.height}`,
      preserveAspectRatio: "none", "aria-hidden": "true"}, this.area, this.line);
    this.node = element("div", {class: `rate ${kind}`},
      element("div", {class: "rate-head"}, element("span", {}, label), this.peak),
      this.figure, this.chart);
    this.values = [];
  }

  clear() {
    this.values = [];
  }

  add(value) {
    this.values.push(value);
    if (this.values.length > KEPT) this.values.shift();
    const recent = this.values.slice(-RATE_READINGS);
    set_text(this.figure, rate_text(recent.reduce((sum, one) => sum + one, 0) / recent.length));
    this.draw();
  }

  draw() {
    const peak = Math.max(...this.values);
    set_text(this.peak, peak > 0 ? `peak ${rate_text(peak)}` : "");
    const top = Math.max(peak, 1e-9);
    const step = CHART.width / (KEPT - 1);
    const points = this.values.map((value, index) => {
      const x = CHART.width - (this.values.length - 1 - index) * step;
      const y = CHART.height - 1 - (value / top) * (CHART.height - 4);
      return `${x.toFixed(1)} ${y.toFixed(1)}`;
    });
    const first = CHART.width - (this.values.length - 1) * step;
    this.line.setAttribute("d", `M${points.join("L")}`);
    this.area.setAttribute("d",
      `M${first.toFixed(1)} ${CHART.height}L${points.join("L")}L${CHART.width} ${CHART.height}Z`);
  }
}

// A bar whose parts are as long as their amounts, and the legend that says them.
class Bar {
  constructor(kinds) {
    this.parts = new Map();
    this.bar = element("div", {class: "bar", "aria-hidden": "true"});
    this.legend = element("ul", {class: "legend"});
    for (const [kind, label] of kinds) {
      const part = element("span", {class: kind});
      const entry = element("li", {class: kind});
      this.bar.append(part);
      this.legend.append(entry);
      this.parts.set(kind, {part, entry, label});
    }
  }

  show(amounts, text, whole) {
    for (const [kind, {part, entry, label}] of this.parts) {
      const amount = amounts[kind];
      entry.hidden = part.hidden = amount === null || amount === undefined;
      if (entry.hidden) continue;
      part.style.flexBasis = `${(100 * amount) / Math.max(whole, 1e-9)}%`;
      set_text(entry, `${label} ${text(amount)}`);
    }
  }
}

// The pages of the KV cache as a field of cells, each of which is one page or as many as needed
// to stay below CELLS_MAX.
class Pages {
  constructor() {
    this.cells = element("div", {class: "cells", "aria-hidden": "true"});
    this.bar = new Bar([["used", "used"], ["cached", "cached"], ["free", "free"]]);
    this.scale = element("p", {class: "hint"});
    this.node = element("div", {}, this.cells, this.bar.legend, this.scale);
  }

  show(used, cached, free) {
    const total = used + (cached ?? 0) + free;
    this.bar.show({used, cached, free}, number_text, total);
    const per_cell = Math.max(1, Math.ceil(total / CELLS_MAX));
    const count = Math.ceil(total / per_cell);
    while (this.cells.children.length < count) this.cells.append(element("i"));
    while (this.cells.children.length > count) this.cells.lastElementChild.remove();
    [...this.cells.children].forEach((cell, index) => {
      const page = index * per_cell;
      const kind = page < used ? "used" : page < used + (cached ?? 0) ? "cached" : "free";
      if (cell.className !== kind) cell.className = kind;
    });
    const each = per_cell === 1 ? "one page" : `${per_cell} pages`;
    set_text(this.scale, `Each square is ${each} of 64 tokens, ${number_text(total)} in all.`);
  }
}

// One rank: where it lies, what it holds, how long it waits for others.
class Rank {
  constructor() {
    this.title = element("h4");
    this.place = element("span", {class: "place"});
    this.bar = new Bar(MEMORY);
    this.facts = new Facts(["lie", "Weights lie"], ["pages", "Pages"], ["waits", "At barriers"],
      ["exchange", "In exchange"], ["bytes", "Exchanged"]);
    this.node = element("li", {class: "rank"}, element("header", {}, this.title, this.place),
      this.bar.bar, this.bar.legend, this.facts.node);
  }

  show(info, now, before, largest) {
    const rank = {rank: info.rank};
    const workers = `${info.workers} ${info.workers === "1" ? "worker" : "workers"}`;
    const node = info.node === "-1" ? "bound to no node" : `node ${info.node}`;
    set_text(this.title, `Rank ${info.rank}`);
    set_text(this.place, `${node} · ${workers}`);
    this.show_place(info.node, now.value("rank_wrong_node_bytes", rank));
    const amounts = {};
    for (const [kind] of MEMORY) amounts[kind] = now.value("rank_memory_bytes", {...rank, kind});
    this.bar.show(amounts, bytes_text, largest);
    const pages = PAGES.map(([page, label]) =>
      [now.value("rank_page_bytes", {...rank, page}), label]).filter(([bytes]) => bytes > 0);
    this.facts.show("pages", pages.length === 0 ? null
      : pages.map(([bytes, label]) => `${bytes_text(bytes)} in ${label}`).join(", "));
    const share = (name) => {
      const found = ratio(before, now, name, "step_duration_seconds_sum", rank);
      return found === null ? null : `${share_text(Math.min(1, found))} of a pass`;
    };
    this.facts.show("waits", share("rank_barrier_wait_seconds_total"));
    this.facts.show("exchange", share("rank_collective_seconds_total"));
    const sent = growth(before, now, "rank_collective_bytes_total", rank);
    const seconds = now.when - before.when;
    this.facts.show("bytes", sent > 0 && seconds > 0 ? `${bytes_text(sent / seconds)}/s` : null);
  }

  // The kernel was asked after the load where each page is.
  show_place(node, wrong_bytes) {
    this.facts.show("lie", wrong_bytes === null || node === "-1" ? null
      : wrong_bytes > 0 ? `${bytes_text(wrong_bytes)} on a wrong node` : `all on node ${node}`);
    this.facts.mark("lie", wrong_bytes > 0);
  }
}

export class Live {
  // `panel` is filled; `on_state({kind, text})` hears of loading, ready, none.
  constructor(panel, on_state) {
    this.on_state = on_state;
    this.readings = [];
    this.generated = new Rate("Generated", "generated");
    this.prompt = new Rate("Prompt", "prompt");
    this.batch = new Facts(["running", "Running"], ["waiting", "Waiting"],
      ["sequences", "Sequences per pass"], ["tokens", "Tokens per pass"],
      ["step", "Time of a pass"],
      ["first", "First token, median"], ["between", "Between tokens, median"],
      ["queued", "In the queue, median"]);
    this.pages = new Pages();
    this.cache = new Facts(["hits", "Prefix-cache hits"], ["preempted", "Preemptions"],
      ["evicted", "Evictions"]);
    this.ranks = new Map();
    this.rank_list = element("ul", {class: "ranks"});
    this.process = new Facts(["model", "Model"], ["kernels", "Kernels"],
      ["arithmetic", "Arithmetic"], ["strategy", "Split"], ["weights", "Loaded"],
      ["ended", "Requests ended"], ["rejected", "Rejected"], ["connections", "Connections"],
      ["memory", "Memory"], ["up", "Up for"], ["version", "Version"]);
    this.progress = element("progress", {max: "1", "aria-label": "Load of the model"});
    this.progress_text = element("p", {class: "hint"});
    this.loading = element("section", {hidden: true}, element("h3", {}, "Loading"),
      this.progress, this.progress_text);
    this.notice = element("p", {class: "notice", hidden: true});
    this.body = element("div", {class: "live", hidden: true}, this.loading,
      this.section("Tokens per second", element("div", {class: "rates"}, this.generated.node,
        this.prompt.node)),
      this.section("Batch and queue", this.batch.node),
      this.section("KV cache", this.pages.node, this.cache.node),
      this.rank_section = this.section("Ranks", this.rank_list),
      this.section("Daemon", this.process.node));
    panel.append(this.notice, this.body);
    document.addEventListener("visibilitychange", () => this.resume());
    this.resume();
  }

  section(title, ...nodes) {
    return element("section", {}, element("h3", {}, title), ...nodes);
  }

  // Reads as long as the page is seen. One reading at a time.
  async resume() {
    if (this.is_reading || document.hidden) return;
    this.is_reading = true;
    while (!document.hidden) {
      const began = performance.now();
      await this.read();
      const pause = Math.max(100, PERIOD_MS - (performance.now() - began));
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
    this.is_reading = false;
  }

  async read() {
    try {
      const text = await (await request("/metrics", {signal: AbortSignal.timeout(10000)})).text();
      this.take(new Reading(text, performance.now() / 1000));
    } catch (error) {
      this.fail(error);
    }
  }

  fail(error) {
    this.readings = [];
    this.generated.clear();
    this.prompt.clear();
    this.body.hidden = true;
    this.notice.hidden = false;
    if (error.status === 404) {
      set_text(this.notice, "This server gives no metrics (it runs with --metrics false), " +
        "so there is nothing to show here.");
      this.on_state({kind: "unknown", text: ""});
    } else if (error.status === 401) {
      set_text(this.notice, "The server wants an API key before it shows its metrics.");
      this.on_state({kind: "locked", text: "key needed"});
    } else {
      set_text(this.notice, "The server does not answer. This view goes on as soon as it does.");
      this.on_state({kind: "gone", text: "no answer"});
    }
  }

  take(now) {
    const start = now.value("process_start_time_seconds");
    const previous = this.readings.at(-1);
    // A hidden page sleeps, a new process counts from 0: neither makes a rate.
    const breaks = previous &&
      (previous.value("process_start_time_seconds") !== start || now.when - previous.when > 5);
    if (breaks) {
      this.readings = [];
      this.generated.clear();
      this.prompt.clear();
    }
    this.readings.push(now);
    if (this.readings.length > KEPT) this.readings.shift();
    this.notice.hidden = true;
    this.body.hidden = false;
    this.show(now);
  }

  // The reading of so many seconds ago, or the oldest.
  before(count) {
    return this.readings.at(-1 - count) ?? this.readings[0];
  }

  show(now) {
    this.show_load(now);
    const last = this.before(1);
    const seconds = now.when - last.when;
    if (seconds > 0) {
      this.generated.add((growth(last, now, "generation_tokens_total") ?? 0) / seconds);
      this.prompt.add((growth(last, now, "prompt_tokens_total") ?? 0) / seconds);
    }
    this.show_batch(now);
    this.show_cache(now);
    this.show_ranks(now);
    this.show_daemon(now);
  }

  show_load(now) {
    const share = now.value("model_load_progress_ratio") ?? 1;
    const loads = share < 1;
    this.loading.hidden = !loads;
    this.on_state(loads ? {kind: "loading", text: `loading ${share_text(share)}`}
      : {kind: "ready", text: "ready"});
    if (!loads) return;
    this.progress.value = share;
    const bytes = now.value("model_load_bytes") ?? 0;
    const before = this.before(3);
    const rate = (growth(before, now, "model_load_bytes") ?? 0) / (now.when - before.when);
    const speed = rate > 0 ? `, ${bytes_text(rate)}/s` : "";
    set_text(this.progress_text, `${bytes_text(bytes)} read${speed}`);
  }

  show_batch(now) {
    const count = (value) => (value === null ? null : number_text(value));
    const mean = (name) => {
      const found = ratio(this.before(10), now, `${name}_sum`, `${name}_count`);
      return found === null ? null : number_text(found, 1);
    };
    const median = (name) => {
      const found = quantile(this.before(KEPT), now, name, 0.5);
      return found === null ? null : seconds_text(found);
    };
    this.batch.show("running", count(now.value("requests_running")));
    const waiting = now.value("requests_waiting");
    const tokens = now.value("requests_waiting_prompt_tokens");
    this.batch.show("waiting", waiting === null ? null : tokens === null ? number_text(waiting)
      : `${number_text(waiting)} with ${number_text(tokens)} prompt tokens`);
    this.batch.show("sequences", mean("step_sequences"));
    this.batch.show("tokens", mean("step_tokens"));
    const step = ratio(this.before(10), now, "step_duration_seconds_sum",
      "step_duration_seconds_count");
    this.batch.show("step", step === null ? null : seconds_text(step));
    this.batch.show("first", median("time_to_first_token_seconds"));
    this.batch.show("between", median("inter_token_latency_seconds"));
    this.batch.show("queued", median("request_queue_seconds"));
  }

  show_cache(now) {
    const pages = (state) => now.value("kv_cache_pages", {state});
    if (pages("used") !== null && pages("free") !== null) {
      this.pages.show(pages("used"), pages("cached"), pages("free"));
    }
    const hits = now.value("prefix_cache_hits_total");
    const queries = now.value("prefix_cache_queries_total");
    this.cache.show("hits", hits === null || !queries ? null
      : `${share_text(hits / queries)} of ${number_text(queries)} tokens`);
    const counted = (name) => {
      const value = now.value(name);
      return value > 0 ? number_text(value) : null;
    };
    this.cache.show("preempted", counted("preemptions_total"));
    this.cache.show("evicted", counted("kv_cache_evictions_total"));
  }

  show_ranks(now) {
    const infos = now.series("rank_info").map(({labels}) => labels);
    infos.sort((a, b) => Number(a.rank) - Number(b.rank));
    this.rank_section.hidden = infos.length === 0;
    const held = infos.map(({rank}) => now.value("rank_memory_bytes", {rank}) ?? 0);
    const known = new Set(infos.map(({rank}) => rank));
    for (const [rank, view] of this.ranks) {
      if (known.has(rank)) continue;
      view.node.remove();
      this.ranks.delete(rank);
    }
    for (const info of infos) {
      if (!this.ranks.has(info.rank)) {
        this.ranks.set(info.rank, new Rank());
        this.rank_list.append(this.ranks.get(info.rank).node);
      }
      this.ranks.get(info.rank).show(info, now, this.before(RANK_READINGS), Math.max(...held));
    }
  }

  show_daemon(now) {
    const model = now.info("model_info");
    const text = (value) => value ?? null;
    const counted = (name, wanted, more) => {
      const value = now.value(name, wanted);
      return value === null ? null : more(value);
    };
    this.process.show("model", model.model === undefined ? null
      : [model.model, model.architecture, model.format].filter(Boolean).join(" · "));
    this.process.show("kernels", text(model.isa));
    this.process.show("arithmetic", text(model.arithmetic));
    this.process.show("strategy", text(model.strategy));
    this.process.show("weights", this.load_text(now));
    const ended = ENDS.map(([reason, label]) =>
      [now.value("requests_total", {finish_reason: reason}), label]).filter(([many]) => many > 0);
    this.process.show("ended", ended.length === 0 ? null
      : ended.map(([many, label]) => `${number_text(many)} ${label}`).join(", "));
    this.process.show("rejected", counted("requests_rejected_total", {},
      (many) => (many > 0 ? number_text(many) : null)));
    this.process.show("connections", counted("http_connections", {}, number_text));
    this.process.show("memory", counted("process_resident_memory_bytes", {}, bytes_text));
    this.process.show("up", counted("process_start_time_seconds", {},
      (start) => seconds_text(Math.max(0, Date.now() / 1000 - start))));
    this.process.show("version", text(now.info("build_info").version));
  }

  load_text(now) {
    const seconds = now.value("model_load_seconds");
    const bytes = now.value("model_load_bytes");
    if (seconds === null || bytes === null || (now.value("model_load_progress_ratio") ?? 1) < 1) {
      return null;
    }
    return `${bytes_text(bytes)} in ${seconds_text(seconds)}`;
  }
}
