// The fleet at a glance.
import { h, section } from "../dom.js";
import { count, interval, number, time } from "../format.js";
import { table } from "../table.js";
import { hostLink, INCIDENT_COLUMNS, jobLink } from "../words.js";

export const title = () => "Fleet";
/** Whether it is to be asked again soon: central counts VMs the first time. */
export const isUnfinished = (o) => !o.is_counted && o.hosts > 0;
export const load = (ask) => ask("v1/overview");

const tile = (label, value, href, kind) =>
  h("li", { class: kind }, h("a", { href }, h("strong", null, value), label));
const one = (value, label, several = `${label}s`) => (value === 1 ? label : several);

const HOSTS = [
  { label: "Host", value: (c) => c.host, cell: (c) => hostLink(c.host, { hours: 24 }) },
  { label: "Slots", value: (c) => c.reports, cell: (c) => count(c.reports), numeric: true, hint: "slots in contention" },
  { label: "Incidents", value: (c) => c.incidents, cell: (c) => count(c.incidents), numeric: true },
  { label: "Open", value: (c) => c.open_incidents, cell: (c) => count(c.open_incidents), numeric: true },
  { label: "Peak mnCPI", value: (c) => c.peak_mn_cpi, cell: (c) => number(c.peak_mn_cpi), numeric: true },
  { label: "Last", value: (c) => c.last_unix_ns, cell: (c) => time(c.last_unix_ns), numeric: true },
];
const ANTAGONISTS = [
  { label: "Job", value: (a) => a.job, cell: (a) => jobLink(a.job) },
  { label: "Incidents", value: (a) => a.incidents, cell: (a) => count(a.incidents), numeric: true, hint: "in which it was suspected first" },
  { label: "Hosts", value: (a) => a.hosts, cell: (a) => count(a.hosts), numeric: true },
  { label: "Coefficient, 95 %", value: (a) => a.coefficient, cell: (a) => interval(a.coefficient, a.standard_error), numeric: true, hint: "mnCPI per core of its CPU usage" },
  { label: "Last", value: (a) => a.last_unix_ns, cell: (a) => time(a.last_unix_ns), numeric: true },
];

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
  return [
    hosts,
    section("Open incidents",
      table("overview-open", `Contention that goes on now, the last that began first${o.open_incidents > o.open.length ? `: ${o.open.length} of ${count(o.open_incidents)}` : ""}`,
        INCIDENT_COLUMNS.filter((column) => column.label !== "State"), o.open, "No contention now.")),
    h("div", { class: "columns wide" },
      section("Hosts by contention",
        table("overview-hosts", `Last 24 hours, the most slots first${o.contended_hosts > o.contended.length ? `: ${o.contended.length} of ${count(o.contended_hosts)} hosts` : ""}`,
          HOSTS, o.contended, "No host reported contention in the last 24 hours.")),
      section("Top antagonists",
        table("overview-jobs", "Jobs suspected first in the last 24 hours", ANTAGONISTS, o.antagonists, "No job was suspected in the last 24 hours."))),
  ];
}
