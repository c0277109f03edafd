// What the page says to the server, and nobody else: requests with the key, errors, event streams.
import {store, stored} from "./dom.js";

const KEY = "lockstep.key";

export function api_key() {
  return stored("sessionStorage", KEY, "");
}

// Kept until the tab is closed, never longer.
export function set_api_key(key) {
  store("sessionStorage", KEY, key === "" ? null : key);
}

// An answer that is none of 2xx, or none at all (status 0).
export class ServerError extends Error {
  constructor(status, message, details = {}) {
    super(message);
    this.status = status;
    this.code = details.code ?? null;
    this.parameter = details.param ?? null;
    this.retry_after_seconds = details.retry_after_seconds ?? null;
  }
}

async function to_error(response) {
  let details = {};
  try {
    details = (await response.json()).error ?? {};
  } catch {
    // Not ours: a proxy's page, or an answer that was cut off.
  }
  const wait = Number(response.headers.get("Retry-After") ?? "none");
  return new ServerError(
    response.status,
    details.message ?? `The server answered with status ${response.status}.`,
    {...details, retry_after_seconds: Number.isFinite(wait) ? wait : null},
  );
}

// Throws ServerError, or an AbortError when `signal` says so.
export async function request(path, {body, signal} = {}) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (api_key() !== "") headers.Authorization = `Bearer ${api_key()}`;
  let response;
  try {
    response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "omit",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The server cannot be reached.");
  }
  if (!response.ok) throw await to_error(response);
  return response;
}

// The data of each event of a text/event-stream, as they come.
export async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  while (true) {
    const {done, value} = await reader.read();
    if (done) return;
    const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (data.length > 0) yield data.join("\n");
        data = [];
      } else if (line.startsWith("data:")) {
        data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
  }
}

// POSTs `body` and gives each event's JSON until "[DONE]". An error event, and an end without
// "[DONE]", throw ServerError.
export async function* stream(path, body, signal) {
  const response = await request(path, {body: {...body, stream: true}, signal});
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ServerError(500, event.error.message, event.error);
      yield event;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ServerError) throw error;
    throw new ServerError(0, "The connection broke before the answer was complete.");
  }
  throw new ServerError(0, "The answer ended before it was complete.");
}
