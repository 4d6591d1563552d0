// What to do: recommendations of hosts in one line, and in full with commands to copy.
import { h, section } from "./dom.js";
import { counted, isKnown, plain } from "./format.js";

const OPEN_ACTIONS = 2;

/** A list of words as a shell takes it. */
const quoted = (words) => words.map((word) => (/^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`)).join(" ");

// The words of `whitepanda explain`.
const DONE = {
  cap_cpu: (name) => `cap the CPU of ${name}`,
  limit_bandwidth: (name) => `limit the memory bandwidth of ${name}`,
  limit_cache: (name, victim) => `leave cache to ${victim}: limit ${name}`,
  migrate_suspect: (name) => `migrate ${name} (suspect)`,
  migrate_victim: (name) => `migrate ${name} (victim)`,
  nothing: () => "do nothing",
};
const SIGNALS = { mn_cpi: "mnCPI", degradation: "slow-down" };

const AT_LEAST = /^at least: /; // how hosts begin to say that a signal is cut

/**
 * What an action is expected to change: mnCPI 2.90 now, 1.90 (1.80 to 2.00) then; contention begins at 2.00.
 *
 * @param {object} expected effect of the action.
 * @param {boolean} isCut whether the signal may be higher than it is known to be.
 */
export function effect(expected, isCut = false) {
  const signal = SIGNALS[expected.signal] ?? expected.signal;
  const more = isCut ? " or more" : "";
  const before = isKnown(expected.before) ? `${signal} ${plain(expected.before)}${more} now` : `${signal} now not known`;
  const ends = isKnown(expected.low) && isKnown(expected.high) ? ` (${plain(expected.low)} to ${plain(expected.high)})` : "";
  const after = isKnown(expected.after) ? `${plain(expected.after)}${more}${ends} then` : "not known what then";
  const bar = isKnown(expected.threshold) ? `; contention begins at ${plain(expected.threshold)}` : "";
  const why = expected.unknown_because ? `. ${expected.unknown_because.replace(AT_LEAST, "")}${isKnown(expected.after) && expected.after < expected.before && isCut ? "; more may be needed" : ""}` : "";
  return `${before}, ${after}${bar}${why}`;
}

/** Have a command's text in the clipboard; where the browser gives none (no HTTPS), mark it, so that Ctrl+C takes it. */
async function copy(button, code) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code);
    button.textContent = "Press Ctrl+C";
  }
}

function command(given, id) {
  const code = h("code", { id: `${id}-text` }, quoted(given.words));
  const button = h("button", { type: "button", class: "copy", id, "aria-live": "polite", "aria-describedby": code.id, onclick: () => copy(button, code) }, "Copy");
  return h("p", null, `${given.purpose}: `, code, " ", button);
}

/** An action in one line: cap the CPU of batch-1 to 2.30 cores. */
export function inOneLine(recommended) {
  const amount = isKnown(recommended.amount) ? ` to ${plain(recommended.amount)} ${recommended.unit}` : "";
  const name = recommended.name || recommended.vm;
  const word = String(recommended.action);
  return `${Object.hasOwn(DONE, word) ? DONE[word](name, recommended.victim_name || recommended.victim) : `${word} ${name}`}${amount}`;
}

function action(recommended, k, isCut) {
  return h("li", { class: "action" },
    h("h3", null, `${k + 1}. ${inOneLine(recommended)}`),
    recommended.effect && h("p", null, h("strong", null, "Expected: "), effect(recommended.effect, isCut)),
    (recommended.evidence ?? []).map((line) => h("p", { class: "quiet" }, line)),
    (recommended.commands ?? []).map((given, c) => command(given, `command-${k + 1}-${c + 1}`)));
}

/** The first actions, and the others folded: what is least likely to be done is not to be scrolled past. */
export function actions(recommended) {
  const isCut = recommended.some((each) => AT_LEAST.test(each.effect?.unknown_because ?? "")); // all are of one moment
  const made = recommended.map((each, k) => action(each, k, isCut));
  const rest = made.slice(OPEN_ACTIONS);
  return section("What to do", h("ol", { class: "actions" }, made.slice(0, OPEN_ACTIONS)),
    rest.length > 0 && h("details", { id: "more-actions" }, h("summary", null, counted(rest.length, "more action")),
      h("ol", { class: "actions", start: OPEN_ACTIONS + 1 }, rest)));
}
