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

/** A moment, nanoseconds since 1970, in local time; its title has UTC. */
export function time(ns) {
  if (!ns) return NONE();
  const iso = new Date(ns / 1e6).toISOString();
  return h("time", { datetime: iso, title: `${iso.slice(0, 19).replace("T", " ")} UTC` }, clock(ns / 1e6));
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
