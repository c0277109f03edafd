// The turns of the conversation, kept in this browser, and the request that asks for the next one.
import {store, stored} from "./dom.js";

const NAME = "lockstep.conversation";

function is_turn(turn) {
  return (
    (turn?.role === "user" || turn?.role === "assistant") && typeof turn.content === "string" &&
    ["string", "undefined"].includes(typeof turn.thoughts)
  );
}

// Nothing has come of it. One that was cut inside its thoughts is an answer, though an empty one.
function is_empty(turn) {
  return turn.content === "" && !turn.thoughts;
}

// A turn is {role, content, thoughts?, facts?, problem?}: `thoughts` of an answer are what the model
// has written before it, `facts` are what it cost, `problem` is the ServerError that ended it.
export class Conversation {
  constructor() {
    const kept = stored("localStorage", NAME, []);
    this.turns = Array.isArray(kept) ? kept.filter(is_turn) : [];
    // The page was left before the answer began: it can be asked for again.
    if (this.turns.at(-1)?.role === "user") this.add("assistant", "").facts = {finish: "stopped"};
  }

  save() {
    const kept = this.turns.map(({role, content, thoughts, facts}) =>
      ({role, content, thoughts, facts}));
    store("localStorage", NAME, kept.length > 0 ? kept : null);
  }

  add(role, content) {
    const turn = {role, content};
    this.turns.push(turn);
    return turn;
  }

  // Drops `turn` and all that follow it.
  cut(turn) {
    const index = this.turns.indexOf(turn);
    if (index >= 0) this.turns.splice(index);
  }

  clear() {
    this.turns = [];
    this.save();
  }

  // The turns to send: without the empty answer at the end that is to be filled, and without
  // questions that were never answered, as templates want both sides in turn.
  said() {
    const {turns} = this;
    return turns.filter((turn, index) => {
      if (is_empty(turn)) return false;
      const last = index + 2 >= turns.length;
      return turn.role === "assistant" || last || !is_empty(turns[index + 1]);
    });
  }

  // What the chat endpoint wants to hear. Thoughts stay here: models do not expect their old ones.
  messages(system_prompt) {
    const messages = this.said().map(({role, content}) => ({role, content}));
    return system_prompt ? [{role: "system", content: system_prompt}, ...messages] : messages;
  }

  // All of it as one text, for a model that only continues texts. Where one goes on after an
  // answer, a line begins.
  text() {
    let text = "";
    for (const turn of this.said()) {
      if (turn.role === "user" && text !== "" && !/\s$/.test(text)) text += "\n";
      text += turn.content;
    }
    return text;
  }
}
