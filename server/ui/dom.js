// Elements, storage and numbers. Text enters the page as text nodes only.

const SVG = "http://www.w3.org/2000/svg";

function set_attributes(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") {
      node.addEventListener(name.replace(/^on/, ""), value);
    } else {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
}

// element("button", {type: "button", onclick: f}, "Copy"); children that are null are left out.
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  set_attributes(node, attributes);
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export function svg_element(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  set_attributes(node, attributes);
  node.append(...children);
  return node;
}

// Sets the text only where it differs: what has not changed is neither laid out nor read out again.
export function set_text(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// localStorage or sessionStorage, where the browser allows it; JSON values.
export function stored(storage, name, otherwise) {
  try {
    const text = window[storage].getItem(name);
    return text === null ? otherwise : JSON.parse(text);
  } catch {
    return otherwise;
  }
}

export function store(storage, name, value) {
  try {
    if (value === null) window[storage].removeItem(name);
    else window[storage].setItem(name, JSON.stringify(value));
  } catch {
    // Full or forbidden: the page works without.
  }
}

// True if it worked. Pages that were not fetched over TLS or from this machine have no
// navigator.clipboard.
export async function copy_text(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = element("textarea", {class: "visually-hidden", readonly: true});
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

// A button that copies what `text()` gives when it is pressed, and says so for a moment.
export function copy_button(text) {
  const button = element("button", {type: "button", class: "quiet"}, "Copy");
  let timer = 0;
  button.addEventListener("click", async () => {
    set_text(button, (await copy_text(text())) ? "Copied" : "Copying failed");
    button.focus();
    clearTimeout(timer);
    timer = setTimeout(() => set_text(button, "Copy"), 1500);
  });
  return button;
}

// "4,459,264", "12.3": at most `digits` behind the point.
export function number_text(value, digits = 0) {
  return value.toLocaleString("en", {maximumFractionDigits: digits});
}

// Three digits or so, as rates are read.
export function rate_text(value) {
  return number_text(value, value < 10 ? 1 : 0);
}

export function bytes_text(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    ++unit;
  }
  return `${number_text(bytes, bytes < 10 && unit > 0 ? 1 : 0)} ${units[unit]}`;
}

export function seconds_text(seconds) {
  if (seconds < 0.001) return `${number_text(seconds * 1e6)} µs`;
  if (seconds < 1) return `${number_text(seconds * 1e3, seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 120) return `${number_text(seconds, seconds < 10 ? 1 : 0)} s`;
  if (seconds < 7200) return `${number_text(seconds / 60)} min`;
  if (seconds < 172800) return `${number_text(seconds / 3600)} h`;
  return `${number_text(seconds / 86400)} days`;
}

export function share_text(share) {
  return `${number_text(share * 100, share > 0 && share < 0.0995 ? 1 : 0)} %`;
}
