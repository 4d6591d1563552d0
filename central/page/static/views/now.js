// Who suffers now, from whom, and what to do; then the fleet: a heat map of hosts, who was in contention, who hurt others.
import { h, readable, section } from "../dom.js";
import { count, counted, interval, isKnown, plain, slowDown, time } from "../format.js";
import { inOneLine } from "../remedy.js";
import { table } from "../table.js";
import { hostLink, hostState, jobLink, link, project, state, suspect, vmLink } from "../words.js";

export const title = () => "Who suffers now";
/** Whether it is to be asked again soon: central counts VMs the first time. */
export const isUnfinished = ({ overview: o }) => !o.is_counted && o.hosts > 0;

const ASKED = 12; // incidents whose remedy is asked for: the worst ones
const MOST = 1000; // rows of each list, and cells of the heat map
const SHOWN = 8; // VMs, so that the heat map is not far
const ROWS = 20; // of the lists of the last day

export async function load(ask, { parameters }) {
  const [overview, hosts] = await Promise.all([
    ask("v1/overview", { top: MOST, project: parameters.project }), // every host with VMs that suffer
    ask("v1/hosts", { page_size: MOST, project: parameters.project }),
  ]);
  const open = overview.open;
  const asked = await Promise.all(open.slice(0, ASKED).map((i) => ask(`v1/incidents/${i.id}`).catch((error) => {
    if (error.status === 404) return null; // it became part of an earlier one
    throw error;
  })));
  return { overview, open, details: asked, hosts: await mapped(ask, hosts, open) };
}

const stateOf = ({ host, connected, last_seen_unix_ns: seen }) => ({ host, state: hostState(connected, seen) });

/** The hosts of the heat map. Where not all fit, those with open incidents come first, the slowest first, then the others by name. */
async function mapped(ask, page, open) {
  const listed = page.hosts.filter((each) => !each.importer).map(stateOf);
  const known = new Map(listed.map((each) => [each.host, each]));
  const suffering = [...new Set(open.map((i) => i.host))];
  const others = suffering.filter((host) => !known.has(host));
  if (!page.next_page_token) return [...listed, ...others.map((host) => ({ host, state: "" }))]; // of another replica, perhaps
  const silent = others.length ? (await ask("v1/data-health", { top: MOST })).silent : [];
  const states = new Map(silent.map((each) => [each.host, stateOf(each).state]));
  const first = suffering.map((host) => known.get(host) ?? { host, state: states.get(host) ?? "connected" });
  const isFirst = new Set(suffering);
  return [...first, ...listed.filter((each) => !isFirst.has(each.host))].slice(0, MOST);
}

/** A row per VM that suffers: who, how much, since when, because of whom, where, and the remedy. */
export function suffering({ suffering: vms, open }, details) {
  const incidents = new Map(open.map((i) => [i.id, i]));
  const remedies = new Map(details.map((each, k) => {
    const remedy = each?.incident.recommendations.find((one) => one.action !== "nothing");
    return [open[k].id, remedy ? inOneLine(remedy) : ""];
  }));
  return vms.map((vm) => ({ ...vm, incident: incidents.get(vm.incident), remedy: remedies.get(vm.incident) ?? "" }));
}

const isQuiet = (i) => Boolean(i.silenced_by || i.acknowledged_by);
const quieted = (i) => (i.silenced_by ? "silenced" : i.acknowledged_by ? `taken by ${i.acknowledged_by}` : "open");

const SUFFER = [
  { label: "VM", value: (r) => r.name || r.vm, cell: (r) => vmLink(r) },
  { label: "Slow-down", value: (r) => r.slow_down?.ratio, cell: (r) => slowDown(r.slow_down), numeric: true, hint: "now, times undisturbed, with its interval" },
  { label: "Since", value: (r) => r.since_unix_ns, cell: (r) => time(r.since_unix_ns), numeric: true, isTime: true, hint: "when its host first reported it in this incident" },
  { label: "Because of", value: (r) => r.suspect_name || r.suspect, cell: (r) => suspect(r.suspect && { vm: r.suspect, name: r.suspect_name, job: r.suspect_job }), hint: "its own first suspect, and its job" },
  { label: "On", value: (r) => r.host, cell: (r) => hostLink(r.host) },
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

function heatMap({ overview: o, open, hosts }) {
  const suffers = new Map(open.map((i) => [i.host, i]));
  const contended = new Map(o.contended.map((each) => [each.host, each]));
  const left = Math.max(0, o.hosts - hosts.length);
  const cells = hosts.map(({ host, state: word }) => {
    const incident = suffers.get(host);
    const level = heat(incident, contended.get(host));
    const ratio = incident?.slowest_now?.slow_down?.ratio;
    const said = readable(`${host}: ${incident ? `${counted(incident.victims_now, "VM suffers", "VMs suffer")}${isKnown(ratio) ? `, ${plain(ratio)}x` : ""}` : HEAT[level]}${["", "connected"].includes(word) ? "" : `, ${word}`}`);
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
      h("span", null, h("span", { class: "cell gone", "aria-hidden": "true" }), "late or gone")),
    left > 0 && h("p", { class: "quiet", id: "heat-left" }, `${counted(left, "host is", "hosts are")} not shown: those whose VMs suffer come first, then the others by name. `, link("/hosts", "All hosts"), "."));
}

export function draw(found) {
  const { overview: o, open, details } = found;
  if (!o.hosts && !o.incidents && !o.vms) {
    if (project()) return [h("p", { class: "empty" }, "No VM of this project runs now, and none was in contention in the last 24 hours.")];
    return [h("p", { class: "empty" }, "No host has connected yet. Set ", h("code", null, "uplink.address"), " in the agents' configuration; ",
      h("code", null, "make demo"), " shows simulated ones.")];
  }
  const rows = suffering(o, details);
  const left = o.suffering_in_all - rows.length;
  const tiles = h("ul", { class: "tiles" },
    tile(one(o.connected_hosts, "host connected", "hosts connected"), count(o.connected_hosts), link("/hosts", "").hash),
    tile("late or gone", count(o.late_hosts + o.gone_hosts), link("/health", "").hash, o.late_hosts + o.gone_hosts ? "warn" : null),
    tile(one(o.vms, "VM running", "VMs running"), o.is_counted ? count(o.vms) : "…", link("/vms", "").hash),
    tile(one(o.jobs, "job"), o.is_counted ? count(o.jobs) : "…", link("/jobs", "").hash),
    tile(one(o.open_incidents, "open incident"), count(o.open_incidents), link("/incidents", "").hash, o.open_incidents ? "bad" : null),
    tile(one(o.incidents, "incident, 24 h", "incidents, 24 h"), count(o.incidents), link("/incidents", "").hash));
  const contended = o.contended.slice(0, ROWS);
  const sufferers = table("now", `VMs that suffer, the slowest first${left > 0 ? `: ${count(rows.length)} of ${count(o.suffering_in_all)}` : ""}`,
    SUFFER, rows, unknown(o) ? "No contention on the hosts that report." : "No contention now.", null, SHOWN);
  sufferers.classList.add("cards");
  return [
    sufferers,
    (left > 0 || o.open_incidents > open.length) && h("p", { class: "quiet", id: "now-left" }, left > 0 ? counted(left, "more VM suffers", "more VMs suffer") : "More VMs suffer", ": ", link("/vms", "the list of VMs has all", { behaviour: "victim" }), "."),
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
