// What several views say alike: links, states of hosts, incidents as rows.
import { h } from "./dom.js";
import { count, duration, isKnown, number, plain, time } from "./format.js";

export const link = (path, text, parameters = {}) => {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value));
  return h("a", { href: `#${path}${query.size ? `?${query}` : ""}` }, text);
};
export const hostLink = (host, parameters) => link(`/host/${encodeURIComponent(host)}`, host, parameters);
export const jobLink = (job) => (job ? link(`/job/${encodeURIComponent(job)}`, job) : h("span", { class: "none" }, "nobody"));
export const incidentLink = (id) => link(`/incident/${id}`, `#${id}`);

/** To what a VM did; `parameters` may have a time, `at`. */
export const vmLink = (vm, parameters) => {
  const found = link(`/vm/${encodeURIComponent(vm.vm)}`, vm.name || vm.vm, parameters);
  found.title = vm.vm;
  return found;
};

const LATE_MS = 660_000; // a host without VMs says something every ten minutes

/** How a host is: connected; late, if nothing came for eleven minutes; gone. Words, with a sign and a colour. */
export function hostState(isConnected, lastSeenNs) {
  if (!isConnected) return "gone";
  return Date.now() - lastSeenNs / 1e6 < LATE_MS ? "connected" : "late";
}

const SIGNS = { connected: "●", late: "◐", gone: "○", open: "●", over: "○", ok: "●", failed: "▲", more: "▲", less: "▼" };

export function state(word, text = word) {
  return h("span", { class: `state ${word}` }, h("span", { "aria-hidden": "true" }, `${SIGNS[word] ?? "●"} `), text);
}

/** What a host found of a VM, in the words of `whitepanda events`: victim 1.42x (1.30 to 1.58). */
export function found(event) {
  const { ratio, low, high } = event.degradation ?? {};
  if (!isKnown(ratio)) return event.behaviour;
  return `${event.behaviour} ${plain(ratio)}x${isKnown(low) && isKnown(high) ? ` (${plain(low)} to ${plain(high)})` : ""}`;
}

/** VMs of an incident: the first one's name, and how many more. */
export function vms(found) {
  if (!found.length) return h("span", { class: "none" }, "none");
  const more = found.length > 1 ? ` +${found.length - 1}` : "";
  return h("span", { title: found.slice(0, 20).map((vm) => vm.name || vm.vm).join(", ") }, found[0].name || found[0].vm, more);
}

export const INCIDENT_COLUMNS = [
  { label: "Incident", value: (i) => i.id, cell: (i) => incidentLink(i.id) },
  { label: "State", value: (i) => (i.open ? "open" : "over"), cell: (i) => state(i.open ? "open" : "over") },
  { label: "Host", value: (i) => i.host, cell: (i) => hostLink(i.host) },
  { label: "Suspected job", value: (i) => i.suspect_job, cell: (i) => jobLink(i.suspect_job) },
  { label: "Victims", value: (i) => i.victims[0]?.name ?? "", cell: (i) => vms(i.victims) },
  { label: "Began", value: (i) => i.first_unix_ns, cell: (i) => time(i.first_unix_ns), numeric: true },
  { label: "Lasted", value: (i) => i.last_unix_ns - i.first_unix_ns, cell: (i) => duration(i.last_unix_ns - i.first_unix_ns), numeric: true },
  { label: "Slots", value: (i) => i.reports, cell: (i) => count(i.reports), numeric: true, hint: "slots in contention" },
  { label: "Peak mnCPI", value: (i) => i.peak_mn_cpi, cell: (i) => number(i.peak_mn_cpi), numeric: true, hint: "mean normalised CPI of the victims" },
];
