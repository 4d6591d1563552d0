// Who suffers now, from whom, and what to do; then the fleet: a heat map of hosts, who was in contention, who hurt others.
import { h, section } from "../dom.js";
import { count, counted, interval, plain, time, isKnown, slowDown } from "../format.js";
import { inOneLine } from "../remedy.js";
import { table } from "../table.js";
import { hostLink, hostState, jobLink, link, project, state, suspect, vmLink } from "../words.js";

export const title = () => "Who suffers now";
/** Whether it is to be asked again soon: central counts VMs the first time. */
export const isUnfinished = ({ overview: o }) => !o.is_counted && o.hosts > 0;

const ASKED = 12; // incidents whose victims now, and remedy, are asked for: the worst ones
const SHOWN = 8; // VMs, so that the heat map is not far
const ROWS = 20; // of the lists of the last day

export async function load(ask, { parameters }) {
  const [overview, hosts] = await Promise.all([
    ask("v1/overview", { top: 1000, project: parameters.project }), // every host with VMs that suffer
    ask("v1/hosts", { page_size: 1000, project: parameters.project }),
  ]);
  const open = overview.open;
  const asked = await Promise.all(open.slice(0, ASKED).map((i) => ask(`v1/incidents/${i.id}`).catch((error) => {
    if (error.status === 404) return null; // it became part of an earlier one
    throw error;
  })));
  return { overview, open, details: asked, hosts: hosts.hosts.map(({ host, connected, last_seen_unix_ns: seen, importer }) => ({ host, importer, state: hostState(connected, seen) })), hasMore: Boolean(hosts.next_page_token) };
}

/** A row per VM that suffers: who, how much, since when, because of whom, where, and the remedy. */
export function suffering(open, details) {
  const rows = open.flatMap((i, k) => {
    const known = details[k];
    const now = (known?.reports.at(-1)?.victims ?? []).filter((vm) => vm.vm);
    const victims = now.length ? now : [i.slowest_now ?? i.victims[0] ?? { vm: "", name: "not known" }];
    const remedy = known?.incident.recommendations.find((each) => each.action !== "nothing");
    return victims.map((vm) => ({ ...vm, incident: i, more: now.length ? 0 : i.victims_now - 1, remedy: remedy ? inOneLine(remedy) : "" }));
  });
  const rank = (row) => (isQuiet(row.incident) ? -10 : 0) + (row.slow_down?.ratio ?? 0);
  return rows.filter((row) => !project() || !row.incident.victims.some((vm) => vm.project) || row.incident.victims.some((vm) => vm.vm === row.vm && vm.project === project()))
    .sort((a, b) => rank(b) - rank(a));
}

const isQuiet = (i) => Boolean(i.silenced_by || i.acknowledged_by);
const quieted = (i) => (i.silenced_by ? "silenced" : i.acknowledged_by ? `taken by ${i.acknowledged_by}` : "open");

const SUFFER = [
  { label: "VM", value: (r) => r.name || r.vm, cell: (r) => h("span", null, r.vm ? vmLink(r) : r.name, r.more > 0 && ` +${r.more}`) },
  { label: "Slow-down", value: (r) => r.slow_down?.ratio, cell: (r) => slowDown(r.slow_down), numeric: true, hint: "now, times undisturbed, with its interval" },
  { label: "Since", value: (r) => r.incident.first_unix_ns, cell: (r) => time(r.incident.first_unix_ns), numeric: true, isTime: true },
  { label: "Because of", value: (r) => r.incident.suspect?.name ?? "", cell: (r) => suspect(r.incident.suspect), hint: "the first suspect, and its job" },
  { label: "On", value: (r) => r.incident.host, cell: (r) => hostLink(r.incident.host) },
  { label: "What to do", value: (r) => r.remedy, cell: (r) => h("span", null, r.remedy && [r.remedy, " · "], link(`/incident/${r.incident.id}`, r.remedy ? `how (#${r.incident.id})` : `see #${r.incident.id}`)) },
  { label: "State", value: (r) => quieted(r.incident), cell: (r) => state(isQuiet(r.incident) ? "quieted" : "open", quieted(r.incident)) },
];

const tile = (label, value, href, kind) =>
  h("li", { class: kind }, h("a", { href }, h("strong", null, value), label));
const one = (value, label, several = `${label}s`) => (value === 1 ? label : several);

const HOSTS = [
  { label: "Host", value: (c) => c.host, cell: (c) => hostLink(c.host, { last: 1440 }) },
  { label: "Reports", value: (c) => c.reports, cell: (c) => count(c.reports), numeric: true, hint: "slots in which VMs suffered" },
  { label: "Incidents", value: (c) => c.incidents, cell: (c) => count(c.incidents), numeric: true },
  { label: "Open", value: (c) => c.open_incidents, cell: (c) => count(c.open_incidents), numeric: true },
  { label: "Last", value: (c) => c.last_unix_ns, cell: (c) => time(c.last_unix_ns), numeric: true, isTime: true },
];
const ANTAGONISTS = [
  { label: "Job", value: (a) => a.job, cell: (a) => jobLink(a.job) },
  { label: "Incidents", value: (a) => a.incidents, cell: (a) => count(a.incidents), numeric: true, hint: "in which some report suspects it first; two jobs may share one" },
  { label: "Hosts", value: (a) => a.hosts, cell: (a) => count(a.hosts), numeric: true },
  { label: "Coefficient, 95 %", value: (a) => a.coefficient, cell: (a) => interval(a.coefficient, a.standard_error), numeric: true, hint: "mnCPI per core of its CPU usage" },
  { label: "Last", value: (a) => a.last_unix_ns, cell: (a) => time(a.last_unix_ns), numeric: true, isTime: true },
];

/** Why VMs may suffer that are not listed; "" where all is known. */
function unknown(o) {
  const silent = o.late_hosts + o.gone_hosts;
  return [
    silent > 0 && `Nothing is known now of ${counted(silent, "host")}, late or gone.`,
    o.last_incidents_error && `Central cannot record what hosts report: ${o.last_incidents_error}.`,
  ].filter(Boolean).join(" ");
}

const shown = (rows, all, what) => (all > rows.length ? `: ${rows.length} of ${counted(all, what)}` : "");

/** How hot a host is: 0 calm, 1 in contention within a day, 2 to 4 by the slow-down of its slowest victim now. */
function heat(incident, contention) {
  if (!incident) return contention ? 1 : 0;
  const ratio = incident.slowest_now?.slow_down?.ratio;
  return ratio >= 1.5 ? 4 : ratio >= 1.2 ? 3 : 2;
}

const HEAT = ["no contention", "contention within 24 h", "a VM suffers", "1.2x or more", "1.5x or more"];

function heatMap({ overview: o, open, hosts, hasMore }) {
  const suffers = new Map(open.map((i) => [i.host, i]));
  const contended = new Map(o.contended.map((each) => [each.host, each]));
  const cells = hosts.filter((each) => !each.importer).map(({ host, state: word }) => {
    const incident = suffers.get(host);
    const level = heat(incident, contended.get(host));
    const ratio = incident?.slowest_now?.slow_down?.ratio;
    const said = `${host}: ${incident ? `${counted(incident.victims_now, "VM suffers", "VMs suffer")}${isKnown(ratio) ? `, ${plain(ratio)}x` : ""}` : HEAT[level]}${word === "connected" ? "" : `, ${word}`}`;
    const cell = hostLink(host);
    cell.className = `cell heat-${level} ${word}`;
    cell.title = said;
    cell.setAttribute("aria-label", said);
    if (!level) cell.tabIndex = -1; // a thousand calm hosts are no stops of the Tab key; the list of hosts has them
    cell.textContent = level > 1 ? "!" : "";
    return h("li", null, cell);
  });
  return section("Hosts", h("ul", { class: `heat${cells.length > 60 ? " many" : ""}`, "aria-label": "Heat map of hosts" }, cells),
    h("p", { class: "legend quiet" }, HEAT.map((words, level) => h("span", null, h("span", { class: `cell heat-${level}`, "aria-hidden": "true" }, level > 1 ? "!" : ""), words)),
      h("span", null, h("span", { class: "cell gone", "aria-hidden": "true" }), "late or gone"), hasMore && "The first 1,000 hosts by name."));
}

export function draw(found) {
  const { overview: o, open, details } = found;
  if (!o.hosts && !o.incidents && !o.vms) {
    if (project()) return [h("p", { class: "empty" }, "No VM of this project runs now, and none was in contention in the last 24 hours.")];
    return [h("p", { class: "empty" }, "No host has connected yet. Set ", h("code", null, "uplink.address"), " in the agents' configuration; ",
      h("code", null, "make demo"), " shows simulated ones.")];
  }
  const rows = suffering(open, details);
  const tiles = h("ul", { class: "tiles" },
    tile(one(o.connected_hosts, "host connected", "hosts connected"), count(o.connected_hosts), link("/hosts", "").hash),
    tile("late or gone", count(o.late_hosts + o.gone_hosts), link("/health", "").hash, o.late_hosts + o.gone_hosts ? "warn" : null),
    tile(one(o.vms, "VM running", "VMs running"), o.is_counted ? count(o.vms) : "…", link("/vms", "").hash),
    tile(one(o.jobs, "job"), o.is_counted ? count(o.jobs) : "…", link("/jobs", "").hash),
    tile(one(o.open_incidents, "open incident"), count(o.open_incidents), link("/incidents", "").hash, o.open_incidents ? "bad" : null),
    tile(one(o.incidents, "incident, 24 h", "incidents, 24 h"), count(o.incidents), link("/incidents", "").hash));
  const contended = o.contended.slice(0, ROWS);
  const sufferers = table("now", `VMs that suffer, the slowest first${open.length > ASKED ? `; of ${open.length - ASKED} hosts the slowest one only` : ""}`,
    SUFFER, rows, unknown(o) ? "No contention on the hosts that report." : "No contention now.", null, SHOWN);
  sufferers.classList.add("cards");
  return [
    sufferers,
    unknown(o) && h("p", { class: "problem" }, unknown(o)),
    heatMap(found),
    section("Fleet", tiles),
    h("div", { class: "columns wide" },
      section("Hosts by contention",
        table("now-hosts", `Last 24 hours, the most reports first${shown(contended, o.contended_hosts, "host")}`,
          HOSTS, contended, "No host reported contention in the last 24 hours.")),
      section("Top antagonists",
        table("now-jobs", "Jobs suspected first in the last 24 hours", ANTAGONISTS, o.antagonists.slice(0, ROWS), "No job was suspected in the last 24 hours."))),
  ];
}
