// What several views say alike: links, states of hosts, incidents as rows.
import { h, readable } from "./dom.js";
import { bytes, count, counted, duration, isKnown, plain, short, slowDown, time } from "./format.js";

/** The project that the link in the address bar narrows the page to; "" for all. */
export const project = () => new URLSearchParams(location.hash.split("?")[1]).get("project") ?? "";

export const link = (path, text, parameters = {}) => {
  const query = new URLSearchParams(Object.entries({ project: project(), ...parameters }).filter(([, value]) => value));
  return h("a", { href: `#${path}${query.size ? `?${query}` : ""}` }, text);
};
export const hostLink = (host, parameters) => link(`/host/${encodeURIComponent(host)}`, host, parameters);
export const jobLink = (job) => (job ? link(`/job/${encodeURIComponent(job)}`, job) : h("span", { class: "none" }, "nobody"));
export const incidentLink = (id) => link(`/incident/${id}`, `#${id}`);

/** To what a VM did; `parameters` may have a time, `at`. */
export const vmLink = (vm, parameters) => {
  const found = link(`/vm/${encodeURIComponent(vm.vm)}`, vm.name || vm.vm, parameters);
  found.title = readable(vm.vm);
  return found;
};

const LATE_MS = 660_000; // a host without VMs says something every ten minutes

/** How a host is: connected; late, if nothing came for eleven minutes; gone. Words, with a sign and a colour. */
export function hostState(isConnected, lastSeenNs) {
  if (!isConnected) return "gone";
  return Date.now() - lastSeenNs / 1e6 < LATE_MS ? "connected" : "late";
}

const SIGNS = { connected: "●", late: "◐", gone: "○", open: "●", quieted: "◌", over: "○", ok: "●", failed: "▲", more: "▲", less: "▼" };

export function state(word, text = word) {
  return h("span", { class: `state ${word}` }, h("span", { "aria-hidden": "true" }, `${SIGNS[word] ?? "●"} `), text);
}

/** Which budgets of [quotas] a host has used up, each with how much was refused within five minutes. */
export const usedUp = (host) => host.over_quota.map((each) => `${each.reason.replace("over_quota_", "")} (${count(each.count)})`).join(", ");

/** How a host is, and whether central holds its batches back, as words to sort and filter by. */
export const hostWords = (host) => [
  host.importer ? "import" : hostState(host.connected, host.last_seen_unix_ns),
  host.over_quota.length && `over quota: ${usedUp(host)}`,
  host.min_batch_interval_ms && `paced: ${plain(host.min_batch_interval_ms / 1000, 1)} s`,
].filter(Boolean);

/** The same with signs and colours. */
export function hostStates(host) {
  const [first, ...held] = hostWords(host);
  return h("span", null, state(first), held.map((words) => [" ", state(words.startsWith("over") ? "failed" : "late", words)]));
}

const MOST_DEVICES = 8;

/** Devices in words, alike ones together: 2 x 32.0 MiB. */
function devices(words) {
  const counts = new Map();
  for (const each of words) counts.set(each, (counts.get(each) ?? 0) + 1);
  const shown = [...counts].slice(0, MOST_DEVICES).map(([each, times]) => (times > 1 ? `${times} x ${each}` : each));
  return [...shown, counts.size > MOST_DEVICES && `${counts.size - MOST_DEVICES} more`].filter(Boolean).join(", ");
}

/** What a host is made of, by its facts, as rows of `facts`. */
export function hardware(known) {
  if (!known) return [];
  const disk = (each) => `${each.name} ${bytes(each.size_bytes)}${each.rotational ? " (rotates)" : ""}`;
  return [
    ["Size", [known.cpus && counted(known.cpus, "CPU"), known.memory_bytes && bytes(known.memory_bytes)].filter(Boolean).join(", ")],
    ["LLC domains", devices(known.caches.map((each) => `${bytes(each.size_bytes)} of ${counted(each.cpus, "CPU")}`))],
    ["Network cards", devices(known.network_cards.map((each) => `${each.name} ${isKnown(each.bits_per_s) ? `${short(each.bits_per_s)}bit/s` : "without a link"}`))],
    ["Disks", devices(known.disks.map(disk))],
    ["Manager", known.manager],
  ];
}

const SUFFERS = ["victim", "affected"];

/** What a host found of a VM: victim 1.42x [1.30, 1.58]; of one that suffers no more: steady; was 1.42x [1.30, 1.58] at worst. */
export function found(event) {
  const [before, after] = SUFFERS.includes(event.behaviour) ? [" ", ""] : ["; was ", " at worst"];
  return h("span", { title: event.reason }, event.behaviour, isKnown(event.degradation?.ratio) && [before, slowDown(event.degradation), after]);
}

const ANALYSES = { host: "the host's own analysis", fleet: "the fleet's statistics" };

/** Which analyses found a victim: by the host's own analysis and by the fleet's statistics. */
export const foundBy = (analyses) => (analyses ?? []).map((each) => `by ${ANALYSES[each] ?? each}`).join(" and ");

/** Who is suspected first, with the job if it is known. */
export const suspect = (vm, parameters) =>
  (vm ? h("span", null, vmLink(vm, parameters), vm.job && [" of job ", jobLink(vm.job)]) : h("span", { class: "none" }, "nobody"));

/** The slowest victim: of an open incident now, else of all of it at its worst. */
export const slowest = (i) => (i.open ? i.slowest_now : i.victims[0]) ?? {};

/** How many VMs of a host suffer, or suffered, and the slowest one with its slow-down; `parameters` may have a time. */
export function verdict(i, parameters) {
  const worst = slowest(i);
  const many = (i.open ? i.victims_now : i.victims.length) > 1;
  const ratio = isKnown(worst.slow_down?.ratio) ? slowDown(worst.slow_down) : "slow-down not known";
  return h("p", { class: "verdict" }, state(i.open ? "open" : "over"), " · ",
    i.open ? counted(i.victims_now, "VM suffers", "VMs suffer") : `${counted(i.victims.length, "VM")} suffered`, " on ", hostLink(i.host),
    worst.vm && [many ? "; the slowest is " : ": ", vmLink(worst, parameters), ", ", ratio],
    "; first suspect ", suspect(i.suspect, parameters), ".");
}

/** Victims: the slowest one's name, and how many more. */
function victims(i) {
  const first = slowest(i);
  const more = (i.open ? i.victims_now : i.victims.length) - 1;
  return h("span", { title: i.victims.slice(0, 20).map((vm) => vm.name || vm.vm).join(", ") }, first.name || first.vm || "none", more > 0 && ` +${more}`);
}

const stateWord = (i) => (!i.open ? "over" : i.silenced_by ? "silenced" : i.acknowledged_by ? `taken by ${i.acknowledged_by}` : "open");

export const INCIDENT_COLUMNS = [
  { label: "Incident", value: (i) => i.id, cell: (i) => incidentLink(i.id) },
  { label: "State", value: stateWord, cell: (i) => state(i.open ? (i.silenced_by || i.acknowledged_by ? "quieted" : "open") : "over", stateWord(i)) },
  { label: "Host", value: (i) => i.host, cell: (i) => hostLink(i.host) },
  { label: "Slow-down", value: (i) => slowest(i).slow_down?.ratio, cell: (i) => slowDown(slowest(i).slow_down), numeric: true, hint: "of the victim that is named, with its interval: of an open incident now, else at its worst" },
  { label: "Victims", value: (i) => slowest(i).name ?? "", cell: victims, hint: "the slowest, and how many more" },
  { label: "First suspect", value: (i) => i.suspect?.name ?? "", cell: (i) => suspect(i.suspect) },
  { label: "Found by", value: (i) => i.found_by.join(", "), hint: "host: a VM beside its own baseline; fleet: a VM beside its job" },
  { label: "Began", value: (i) => i.first_unix_ns, cell: (i) => time(i.first_unix_ns), numeric: true, isTime: true },
  { label: "Lasted", value: (i) => i.last_unix_ns - i.first_unix_ns, cell: (i) => duration(i.last_unix_ns - i.first_unix_ns), numeric: true },
];
