// Numbers and times for people. What is not known is a dash with a word for those who hear the page.
import { h } from "./dom.js";

/** A dash, with the word for those who hear the page. */
export const none = (word) => h("span", { class: "none" }, h("span", { "aria-hidden": "true" }, "–"), h("span", { class: "hidden" }, word));
const NONE = () => none("not known");

export const isKnown = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** A number with so many digits behind the point; a dash where it is not known. */
export function number(value, digits = 2) {
  return isKnown(value) ? plain(value, digits) : NONE();
}

export function plain(value, digits = 2) {
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits, signDisplay: "negative" });
}

export function count(value) {
  return value.toLocaleString("en");
}

/** How many of what: 1 host, 2 hosts. */
export function counted(value, one, several = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : several}`;
}

/** A value with what one standard error to both sides makes of it at 95 %. */
export function interval(value, standardError, digits = 3) {
  if (!isKnown(value)) return NONE();
  if (!isKnown(standardError)) return plain(value, digits);
  const half = 1.96 * standardError;
  return h("span", null, plain(value, digits), h("span", { class: "quiet" }, ` ${plain(value - half, digits)} … ${plain(value + half, digits)}`));
}

/** A slow-down with its interval: 1.52x [1.31, 1.78]; of CPI 1.52x CPI [1.31, 1.78]. */
export function slowDown(found) {
  const { ratio, low, high, model, cannot_tell: why } = found ?? {};
  if (!isKnown(ratio)) return h("span", { title: why }, NONE());
  return h("span", null, `${plain(ratio)}x`, model === "cpi" && " CPI", isKnown(low) && isKnown(high) && h("span", { class: "quiet" }, ` [${plain(low)}, ${plain(high)}]`));
}

export function percent(ratio, digits = 1) {
  return isKnown(ratio) ? `${plain(ratio * 100, digits)} %` : NONE();
}

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let k = 0;
  while (value >= 1024 && k < units.length - 1) {
    value /= 1024;
    k += 1;
  }
  return `${plain(value, k ? 1 : 0)} ${units[k]}`;
}

const pad = (value) => String(value).padStart(2, "0");

/** Day and clock of a moment, milliseconds since 1970, in local time: the footer has the zone. */
export function clock(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
}

/** The browser's zone, such as Europe/Berlin (UTC+02:00). */
export function zone() {
  const minutes = -new Date().getTimezoneOffset();
  const offset = `UTC${minutes < 0 ? "-" : "+"}${pad(Math.floor(Math.abs(minutes) / 60))}:${pad(Math.abs(minutes) % 60)}`;
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return name && name !== "UTC" ? `${name} (${offset})` : "UTC";
}

export const DAY_MS = 86_400_000;

/** How long ago a moment is, such as 3 min ago; beyond two days its day and clock. */
export function ago(ms, now = Date.now()) {
  const passed = now - ms;
  if (passed > 2 * DAY_MS || passed < -5000) return clock(ms);
  return passed < 5000 ? "just now" : `${duration(passed * 1e6)} ago`;
}

function moment(ns, text, attributes) {
  if (!ns) return NONE();
  const iso = new Date(ns / 1e6).toISOString();
  return h("time", { datetime: iso, title: `${clock(ns / 1e6)} local, ${iso.slice(0, 19).replace("T", " ")} UTC`, ...attributes }, text(ns / 1e6));
}

/** A moment, nanoseconds since 1970, as how long ago it is; its title has local time and UTC. `keepAgo` keeps it true. */
export const time = (ns) => moment(ns, ago, { "data-ago": ns / 1e6 });

/** A moment by day and clock, where many are compared. */
export const exact = (ns) => moment(ns, clock, {});

/** Let what is said of the past stay true while nothing is redrawn. */
export function keepAgo() {
  for (const each of document.querySelectorAll("time[data-ago]")) {
    const text = ago(Number(each.dataset.ago));
    if (each.textContent !== text) each.textContent = text;
  }
}

export function duration(ns) {
  const s = Math.max(0, Math.round(ns / 1e9));
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172_800) return `${plain(s / 3600, 1)} h`;
  return counted(Math.round(s / 86_400), "day");
}

/** A fixed64 of nanoseconds from milliseconds: too large for a number of this language. */
export function nanoseconds(ms) {
  return `${Math.round(ms)}000000`;
}

const POWERS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

/** A value with three digits that say something, and its unit: 1.52, 0.031, 12.3 G. */
export function short(value) {
  if (!isKnown(value)) return "–";
  const size = Math.abs(value);
  const [power, letter] = POWERS.find(([least]) => size >= least) ?? [1, ""];
  const digits = size === 0 ? 0 : Math.max(0, Math.min(4, 2 - Math.floor(Math.log10(size / power))));
  return `${(value / power).toFixed(digits)}${letter && ` ${letter}`}`;
}
