// Joins the page: theme, panels, key, the chat and the live view.
import {Chat} from "./chat.js";
import {set_text, store} from "./dom.js";
import {Live} from "./live.js";
import {Parameters} from "./parameters.js";
import {api_key, request, set_api_key} from "./server.js";

const RETRY_MS = 2000;
const by_id = (id) => document.getElementById(id);
const root = document.documentElement;
const narrow = matchMedia("(max-width: 60rem)");
let model = null;
let looking = null;  // the promise of the last look for the model

// ---- Light and dark: as the system is, or as chosen here.

const THEMES = ["auto", "light", "dark"];

function show_theme(theme) {
  if (theme === "auto") delete root.dataset.theme;
  else root.dataset.theme = theme;
  const button = by_id("theme");
  button.setAttribute("aria-label", `Colours: ${theme}`);
  button.title = `Colours: ${theme}`;
  for (const icon of button.children) icon.toggleAttribute("hidden", icon.dataset.theme !== theme);
}

function next_theme() {
  const theme = THEMES[(THEMES.indexOf(root.dataset.theme ?? "auto") + 1) % THEMES.length];
  try {
    // theme.js reads it as it is, before anything else is loaded.
    if (theme === "auto") localStorage.removeItem("lockstep.theme");
    else localStorage.setItem("lockstep.theme", theme);
  } catch {
    // Without storage it holds as long as the page does.
  }
  show_theme(theme);
}

// ---- The panel beside the chat; on a narrow screen it covers it.

const PANELS = ["machine", "parameters"];

function open_panel(name) {
  root.dataset.panel = name ?? "none";
  by_id("side").hidden = name === null;
  for (const panel of PANELS) {
    by_id(panel).hidden = panel !== name;
    by_id(`show-${panel}`).setAttribute("aria-expanded", String(panel === name));
  }
  if (!narrow.matches) store("localStorage", "lockstep.panel", name ?? "none");
}

function toggle_panel(name) {
  open_panel(root.dataset.panel === name ? null : name);
}

function first_panel() {
  if (narrow.matches) return null;
  let kept = null;
  try {
    kept = JSON.parse(localStorage.getItem("lockstep.panel"));
  } catch {
    // Nothing was kept, or nothing that we wrote.
  }
  return kept === "none" ? null : PANELS.includes(kept) ? kept : "machine";
}

// ---- The key, asked for when the server wants one.

// Resolves to whether one was given. Whoever asks while the dialog is open shares its answer.
let asking = null;

function ask_key(reason) {
  asking ??= new Promise((resolve) => {
    const dialog = by_id("key-dialog");
    set_text(by_id("key-reason"), reason);
    by_id("key").value = api_key();
    dialog.returnValue = "";
    dialog.addEventListener("close", async () => {
      asking = null;
      const given = dialog.returnValue === "use";
      if (given) set_api_key(by_id("key").value.trim());
      by_id("key").value = "";
      show_key();
      // Requests name the model, which may not be known before there is a key.
      if (given) await find_model();
      resolve(given);
    }, {once: true});
    dialog.showModal();
    by_id("key").select();  // so that typing replaces one that was refused
  });
  return asking;
}

function show_key() {
  by_id("show-key").hidden = api_key() === "" && !root.dataset.locked;
}

// ---- What is served.

async function read_model() {
  const answer = await (await request("/v1/models")).json();
  const {id, meta = {}, max_model_len: context} = answer.data[0];
  model = {name: id};
  const facts = [meta.architecture, meta.format,
    context ? `${context.toLocaleString("en")} tokens of context` : null];
  set_text(by_id("model"), id);
  by_id("model").title = facts.filter(Boolean).join(" · ");
  document.title = `${id} – Lockstep`;
}

async function find_model() {
  try {
    looking = read_model();
    await looking;
  } catch (error) {
    if (error.status === 401) {
      root.dataset.locked = "true";
      show_key();
      await ask_key(error.message);
    } else {
      setTimeout(find_model, RETRY_MS);
    }
  }
}

// Whoever asks before the first answer is here waits for it.
async function found_model() {
  await looking?.catch(() => {});
  return model;
}

function show_state({kind, text}) {
  by_id("state").dataset.kind = kind;
  set_text(by_id("state-text"), text);
}

// ---- Start.

show_theme(root.dataset.theme ?? "auto");
open_panel(first_panel());
show_key();

const parameters = new Parameters(by_id("parameters-form"));
const chat = new Chat(
  {
    log: by_id("log"), form: by_id("composer"), input: by_id("message"), send: by_id("send"),
    stop: by_id("stop"), status: by_id("status"), fresh: by_id("fresh"), hint: by_id("completes"),
    latest: by_id("latest"),
  },
  parameters,
  {model: found_model, ask_key, open_parameters: () => open_panel("parameters")},
);
new Live(by_id("machine-body"), show_state);

by_id("theme").addEventListener("click", next_theme);
for (const panel of PANELS) {
  by_id(`show-${panel}`).addEventListener("click", () => toggle_panel(panel));
}
by_id("close-side").addEventListener("click", () => {
  const button = by_id(`show-${root.dataset.panel}`);
  open_panel(null);
  button.focus();
});
by_id("show-key").addEventListener("click", () => ask_key("The key that requests bear."));
by_id("key-cancel").addEventListener("click", () => by_id("key-dialog").close(""));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || by_id("key-dialog").open) return;
  if (chat.is_running) chat.stop();
  else if (narrow.matches && root.dataset.panel !== "none") by_id("close-side").click();
});
if (!narrow.matches) by_id("message").focus();
find_model();
