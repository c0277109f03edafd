// The form of sampling parameters. What is left empty is not sent: the server's default holds.
import {element, store, stored} from "./dom.js";

const NAME = "lockstep.parameters";

// The parameter as the API names it, its label, and what the field takes.
const NUMBERS = [
  {name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.1,
   hint: "0 always takes the likeliest token"},
  {name: "top_p", label: "Top p", min: 0, max: 1, step: 0.05,
   hint: "Share of probability that is drawn from"},
  {name: "top_k", label: "Top k", min: 0, max: 1000000, step: 1,
   hint: "Tokens that are drawn from; 0: all"},
  {name: "max_tokens", label: "Most tokens", min: 1, max: 100000000, step: 1,
   hint: "Length of an answer at most"},
  {name: "seed", label: "Seed", min: 0, max: Number.MAX_SAFE_INTEGER, step: 1,
   hint: "The same seed gives the same answer"},
];

export class Parameters {
  // Fills `form`; values outlive the page in this browser.
  constructor(form) {
    this.form = form;
    this.values = stored("localStorage", NAME, {}) ?? {};
    this.fields = new Map();
    this.add_text("system", "System prompt", 4, "Said to the model before the conversation");
    const numbers = element("div", {class: "numbers"});
    for (const row of NUMBERS) this.add_number(numbers, row);
    form.append(numbers);
    this.add_text("stop", "Stop at", 2, "One text a line, at most four; the answer ends before it");
    const reset = element("button", {type: "button", class: "quiet", onclick: () => this.reset()},
      "Reset to defaults");
    form.append(element("div", {class: "actions"}, reset));
    form.addEventListener("input", () => this.read());
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  add(parent, name, label, hint, field) {
    field.value = this.values[name] ?? "";
    this.fields.set(name, field);
    parent.append(
      element("div", {class: "field"},
        element("label", {for: field.id}, label),
        field,
        element("p", {class: "hint", id: `${field.id}-hint`}, hint)),
    );
  }

  add_text(name, label, rows, hint) {
    const id = `parameter-${name}`;
    const field = element("textarea",
      {id, rows, spellcheck: "false", "aria-describedby": `${id}-hint`});
    this.add(this.form, name, label, hint, field);
  }

  add_number(parent, {name, label, min, max, step, hint}) {
    const id = `parameter-${name}`;
    const field = element("input", {id, type: "number", inputmode: "decimal", min, max,
      step: step === 1 ? 1 : "any", placeholder: "default", "aria-describedby": `${id}-hint`});
    this.add(parent, name, label, hint, field);
  }

  read() {
    for (const [name, field] of this.fields) this.values[name] = field.value;
    store("localStorage", NAME, this.values);
  }

  reset() {
    for (const field of this.fields.values()) field.value = "";
    this.read();
  }

  // Whether every number is one, and in its range; if not, the form shows which.
  check() {
    return this.form.reportValidity();
  }

  get is_valid() {
    return this.form.checkValidity();
  }

  get system_prompt() {
    return (this.values.system ?? "").trim();
  }

  // The fields of a request.
  request() {
    const request = {};
    for (const {name} of NUMBERS) {
      const text = this.values[name] ?? "";
      if (text !== "") request[name] = Number(text);
    }
    const stop = (this.values.stop ?? "").split("\n").filter((line) => line !== "");
    if (stop.length > 0) request.stop = stop;
    return request;
  }
}
