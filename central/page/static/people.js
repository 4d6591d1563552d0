// What people do about incidents: forms that call the API, and say at once whether central took it.
import { AskError, send } from "./api.js";
import { field, h } from "./dom.js";
import { nanoseconds } from "./format.js";

const KEY = "whitepanda-operator";
const LENGTHS = [["30", "30 minutes"], ["60", "1 hour"], ["240", "4 hours"], ["1440", "a day"], ["10080", "a week"]];
const MINUTE_MS = 60_000;

const operator = () => {
  try {
    return localStorage.getItem(KEY) ?? "";
  } catch {
    return ""; // storage is off: asked for each time
  }
};

function remember(name) {
  try {
    localStorage.setItem(KEY, name);
  } catch {
    // As above.
  }
}

const who = (id) => field("Your name", { name: "operator", id: `${id}-operator`, value: operator(), required: true, maxlength: 64 });

/**
 * A form that has central do something.
 *
 * @param {string} id of the form in the page.
 * @param {string} label what it does, on its button.
 * @param {Array} fields its inputs.
 * @param {Function} call with the values by name; returns the promise of an answer.
 * @param {string} done what is said then.
 */
function acting(id, label, fields, call, done) {
  const said = h("p", { class: "said", role: "status", id: `${id}-said` });
  const submit = async (event) => {
    event.preventDefault();
    const form = event.target;
    const values = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]));
    const button = form.querySelector("button[type=submit]");
    button.disabled = true;
    said.textContent = "";
    try {
      await call(values);
      remember(values.operator);
      for (const input of form.querySelectorAll("input:not([name=operator])")) input.value = "";
      said.textContent = done;
      document.dispatchEvent(new Event("changed"));
    } catch (error) {
      if (!(error instanceof AskError)) throw error;
      said.textContent = `Not done: ${error.message}`;
    } finally {
      button.disabled = false;
    }
  };
  return h("form", { id, "data-keep": "", "aria-label": label, onsubmit: submit }, fields, h("button", { type: "submit", class: "go" }, label), said);
}

export const acknowledgeForm = (incident) =>
  acting("acknowledge", "Acknowledge", [field("Reason", { name: "reason", id: "acknowledge-reason", required: true, placeholder: "I am on it" }), who("acknowledge")],
    ({ reason, operator: by }) => send(`v1/incidents/${incident}/acknowledgement`, { reason, operator: by }), "Acknowledged: it is not sent again.");

export const noteForm = (incident) =>
  acting("note", "Add note", [field("Note", { name: "text", id: "note-text", required: true }), who("note")],
    ({ text, operator: by }) => send(`v1/incidents/${incident}/notes`, { text, operator: by, key: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}` }), "Noted.");

/** A new silence; `of` fills in what it is about. */
export function silenceForm(of) {
  const made = [["host", "Host"], ["vm", "VM (UUID or name)"], ["job", "Job"], ["project", "Project"]]
    .map(([name, label]) => field(label, { name, id: `silence-${name}`, value: of[name] ?? "" }));
  const call = ({ minutes, ...values }) => send("v1/silences", {
    ...Object.fromEntries(Object.entries(values).filter(([, value]) => value)),
    end_unix_ns: Number(BigInt(nanoseconds(Date.now() + Number(minutes) * MINUTE_MS))),
  });
  return acting("silence", "Silence", [...made, field("For", { name: "minutes", id: "silence-minutes", value: "60" }, LENGTHS),
    field("Reason", { name: "reason", id: "silence-reason", required: true }), who("silence")], call, "Silenced.");
}

/** A button that ends a silence; who does is who did something last, or asked for. */
export function endSilence(number) {
  const end = async (event) => {
    const button = event.currentTarget;
    const by = operator();
    if (!by) {
      button.textContent = "Give your name in the form below first";
      return;
    }
    button.disabled = true;
    try {
      await send(`v1/silences/${number}/end`, { operator: by });
      document.dispatchEvent(new Event("changed"));
    } catch (error) {
      button.disabled = false;
      button.textContent = `Not ended: ${error.message}`;
    }
  };
  return h("button", { type: "button", id: `end-silence-${number}`, onclick: end }, "End");
}
