// The time that a view shows, which stands in its link: from and to in milliseconds since 1970; without them the last
// hour, or `last` minutes, up to now.
import { AskError } from "./api.js";
import { field, form, h } from "./dom.js";
import { clock, DAY_MS, nanoseconds } from "./format.js";

const MINUTE_MS = 60_000;
const LASTS = [["15", "15 minutes"], ["60", "1 hour"], ["360", "6 hours"], ["1440", "24 hours"], ["10080", "7 days"]];
const MOST_MS = 400 * 1440 * MINUTE_MS;
const LEAST_MS = 10_000;

function moment(name, text) {
  if (!/^\d{1,14}$/.test(text)) throw new AskError(400, `${name}=${text} is no time; it is milliseconds since 1970, such as ${Date.now()}`);
  return Number(text);
}

/** The time that a link asks for: since and until, ms since 1970, on the grid of `points`, and whether it ends now. */
export function span({ from, to, last = "60" }, points) {
  if (from === undefined && to === undefined) {
    const minutes = Number(last);
    if (!(minutes > 0) || minutes * MINUTE_MS > MOST_MS) throw new AskError(400, `last=${last} cannot be shown; it is minutes, above 0 and at most ${MOST_MS / MINUTE_MS}`);
    const length = minutes * MINUTE_MS;
    const step = Math.max(1000, length / points);
    const until = Math.ceil(Date.now() / step) * step; // nothing changes until the next step begins
    return { since: until - length, until, isLive: true };
  }
  const until = to === undefined ? Date.now() : moment("to", to);
  const since = from === undefined ? until - 60 * MINUTE_MS : moment("from", from);
  if (until - since < LEAST_MS || until - since > MOST_MS) throw new AskError(400, "to must be after from, by 10 s to 400 days");
  return { since, until, isLive: false };
}

/** The last day of the time shown, as an API's parameters; and in words. More than a day is in charts, and in the incidents of a VM, only. */
export const lastDay = ({ since, until }) => ({ since_unix_ns: nanoseconds(Math.max(since, until - DAY_MS)), until_unix_ns: nanoseconds(until) });
export const inLastDay = ({ since, until }) => (until - since > DAY_MS ? "in the last 24 hours of this time" : "in this time");

/** Change parameters of the link in the address bar; those that are "" go. */
export function change(parameters) {
  const [path, query] = location.hash.split("?", 2);
  const all = new URLSearchParams(query);
  for (const [name, value] of Object.entries(parameters)) {
    if (value === "" || value === undefined) all.delete(name);
    else all.set(name, value);
  }
  location.hash = all.size ? `${path}?${all}` : path;
}

/** Show another time: at least ten seconds, and none to come. */
export function zoom(since, until) {
  const most = Math.max(0, until - Date.now());
  const least = Math.max(0, LEAST_MS - (until - since)) / 2;
  change({ from: Math.floor(since - most - least), to: Math.ceil(until - most + (most ? 0 : least)), last: "" });
}

/** What chooses it: the last so long, and steps to the sides, in and out; dragging in a chart does the same. */
export function spanForm(path, parameters, shown) {
  const { since, until, isLive } = shown;
  const length = until - since;
  const button = (id, sign, text, go, disabled = false) =>
    h("button", { type: "button", id: `span-${id}`, "aria-label": text, title: text, onclick: go, disabled }, sign);
  const lasts = LASTS.some(([value]) => value === parameters.last) || !parameters.last ? LASTS : [...LASTS, [parameters.last, `${parameters.last} minutes`]];
  const made = form(path, "Time shown", "Now", field("Up to now", { name: "last", value: parameters.last ?? "60" }, lasts),
    ...Object.entries(parameters).filter(([name]) => !["from", "to", "last"].includes(name)).map(([name, value]) => h("input", { type: "hidden", name, value })));
  made.classList.add("span");
  made.append(h("span", { class: "steps", role: "group", "aria-label": "Move and zoom" },
    button("earlier", "←", "Earlier", () => zoom(since - length / 2, until - length / 2)),
    button("in", "+", "Zoom in", () => zoom(since + length / 4, until - length / 4), length < 4 * LEAST_MS),
    button("out", "−", "Zoom out", () => zoom(since - length / 2, until + length / 2), length * 2 > MOST_MS),
    button("later", "→", "Later", () => zoom(since + length / 2, until + length / 2), isLive)),
  h("span", { class: "quiet", id: "span-shown" }, isLive ? "Live. Drag in a chart to zoom." : `${clock(since)} to ${clock(until)}`));
  return made;
}
