// The fleet at a glance.
import { h, section } from "../dom.js";
import { count, counted, interval, time } from "../format.js";
import { table } from "../table.js";
import { hostLink, INCIDENT_COLUMNS, jobLink } from "../words.js";

export const title = () => "Fleet";
/** Whether it is to be asked again soon: central counts VMs the first time. */
export const isUnfinished = (o) => !o.is_counted && o.hosts > 0;
export const load = (ask) => ask("v1/overview", { top: 1000 }); // every host with VMs that suffer

const ROWS = 20; // of the lists of the last day
const LABELS = ["Incident", "Host", "Slow-down", "Victims", "First suspect", "Found by", "Began"];
const LEAST = ["Found by", "Began"]; // the incident has them
const NOW = INCIDENT_COLUMNS.filter((column) => LABELS.includes(column.label)).map((column) => ({ ...column, isLeast: LEAST.includes(column.label) }));

const tile = (label, value, href, kind) =>
  h("li", { class: kind }, h("a", { href }, h("strong", null, value), label));
const one = (value, label, several = `${label}s`) => (value === 1 ? label : several);

const HOSTS = [
  { label: "Host", value: (c) => c.host, cell: (c) => hostLink(c.host, { hours: 24 }) },
  { label: "Reports", value: (c) => c.reports, cell: (c) => count(c.reports), numeric: true, hint: "slots in which VMs suffered" },
  { label: "Incidents", value: (c) => c.incidents, cell: (c) => count(c.incidents), numeric: true },
  { label: "Open", value: (c) => c.open_incidents, cell: (c) => count(c.open_incidents), numeric: true },
  { label: "Last", value: (c) => c.last_unix_ns, cell: (c) => time(c.last_unix_ns), numeric: true },
];
const ANTAGONISTS = [
  { label: "Job", value: (a) => a.job, cell: (a) => jobLink(a.job) },
  { label: "Incidents", value: (a) => a.incidents, cell: (a) => count(a.incidents), numeric: true, hint: "in which some report suspects it first; two jobs may share one" },
  { label: "Hosts", value: (a) => a.hosts, cell: (a) => count(a.hosts), numeric: true },
  { label: "Coefficient, 95 %", value: (a) => a.coefficient, cell: (a) => interval(a.coefficient, a.standard_error), numeric: true, hint: "mnCPI per core of its CPU usage" },
  { label: "Last", value: (a) => a.last_unix_ns, cell: (a) => time(a.last_unix_ns), numeric: true },
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

export function draw(o) {
  if (!o.hosts && !o.incidents && !o.vms) {
    return [h("p", { class: "empty" }, "No host has connected yet. Set ", h("code", null, "uplink.address"), " in the agents' configuration; ",
      h("code", null, "make demo"), " shows simulated ones.")];
  }
  const hosts = h("ul", { class: "tiles" },
    tile(one(o.connected_hosts, "host connected", "hosts connected"), count(o.connected_hosts), "#/hosts"),
    tile("late or gone", count(o.late_hosts + o.gone_hosts), "#/health", o.late_hosts + o.gone_hosts ? "warn" : null),
    tile(one(o.vms, "VM running", "VMs running"), o.is_counted ? count(o.vms) : "…", "#/hosts"),
    tile(one(o.jobs, "job"), o.is_counted ? count(o.jobs) : "…", "#/jobs"),
    tile(one(o.open_incidents, "open incident"), count(o.open_incidents), "#/incidents", o.open_incidents ? "bad" : null),
    tile(one(o.incidents, "incident, 24 h", "incidents, 24 h"), count(o.incidents), "#/incidents"));
  const contended = o.contended.slice(0, ROWS);
  return [
    hosts,
    section("Who suffers now",
      table("overview-open", `The host with the slowest victim first${shown(o.open, o.open_incidents, "host")}`,
        NOW, o.open, unknown(o) ? "No contention on the hosts that report." : "No contention now."),
      unknown(o) && h("p", { class: "problem" }, unknown(o))),
    h("div", { class: "columns wide" },
      section("Hosts by contention",
        table("overview-hosts", `Last 24 hours, the most reports first${shown(contended, o.contended_hosts, "host")}`,
          HOSTS, contended, "No host reported contention in the last 24 hours.")),
      section("Top antagonists",
        table("overview-jobs", "Jobs suspected first in the last 24 hours", ANTAGONISTS, o.antagonists.slice(0, ROWS), "No job was suspected in the last 24 hours."))),
  ];
}
