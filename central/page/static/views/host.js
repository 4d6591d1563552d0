// One host: what its VMs did over time, and when they suffered.
import { spark, timeChart } from "../charts.js";
import { facts, field, form, h, section } from "../dom.js";
import { count, isKnown, nanoseconds, number, plain, time } from "../format.js";
import { table } from "../table.js";
import { hostState, INCIDENT_COLUMNS, jobLink, state } from "../words.js";

const HOUR_MS = 3_600_000;
const HOURS = [["1", "1 hour"], ["3", "3 hours"], ["6", "6 hours"], ["24", "24 hours"]];
const LINES = 5;
const BRIDGED_NS = 150e9; // gaps that are no gaps: windows may be longer than steps

export const title = ({ what }) => `Host ${what}`;

export function load(ask, { what, parameters }) {
  const hours = Math.min(24, Number(parameters.hours) || 1);
  const points = 120;
  // On the grid of its steps, so that nothing changes until the next one begins.
  const step = (hours * HOUR_MS) / points;
  const at = Number(parameters.at) || Math.ceil(Date.now() / step) * step;
  return ask("v1/host-timeline", { host: what, since_unix_ns: nanoseconds(at - hours * HOUR_MS), until_unix_ns: nanoseconds(at), points });
}

/** By how many standard deviations a VM's CPI is above its job's mean. */
const nCpi = (vm) => (isKnown(vm.mean_cpi) && isKnown(vm.job_mean_cpi) && vm.job_std_cpi > 0 ? (vm.mean_cpi - vm.job_mean_cpi) / vm.job_std_cpi : null);

export function draw(host, route) {
  const names = new Map(host.incidents.flatMap((i) => [...i.victims, ...i.suspects]).map((vm) => [vm.vm, vm.name]));
  const name = (vm) => names.get(vm.vm) || vm.vm;
  const short = (vm) => names.get(vm.vm) || `${vm.job} ${vm.vm.slice(0, 8)}`;
  const seconds = (host.vms[0]?.cpi ?? []).map((_, k) => (host.since_unix_ns + k * host.step_ns) / 1e9);
  const spans = host.incidents.map((i) => [i.first_unix_ns / 1e9, i.last_unix_ns / 1e9]);
  const worst = [...host.vms].filter((vm) => isKnown(vm.mean_cpi)).sort((a, b) => (nCpi(b) ?? -Infinity) - (nCpi(a) ?? -Infinity)).slice(0, LINES);
  const busiest = host.vms.slice(0, LINES);
  const most = Math.ceil(BRIDGED_NS / host.step_ns);
  const steps = `Steps of ${Math.round(host.step_ns / 1e9)} s`;
  const vms = [
    { label: "VM", value: name, cell: (vm) => h("span", { title: vm.vm }, name(vm)) },
    { label: "Job", value: (vm) => vm.job, cell: (vm) => jobLink(vm.job) },
    { label: "CPI over time", value: (vm) => vm.mean_cpi, cell: (vm) => (isKnown(vm.mean_cpi) ? spark(vm.cpi, `CPI between ${plain(Math.min(...vm.cpi.filter(isKnown)))} and ${plain(Math.max(...vm.cpi.filter(isKnown)))}`, most) : number(null)) },
    { label: "CPI", value: (vm) => vm.mean_cpi, cell: (vm) => number(vm.mean_cpi), numeric: true },
    { label: "Job's CPI", value: (vm) => vm.job_mean_cpi, cell: (vm) => number(vm.job_mean_cpi), numeric: true },
    { label: "nCPI", value: nCpi, cell: (vm) => number(nCpi(vm)), numeric: true, hint: "standard deviations above the job's mean" },
    { label: "CPU, cores", value: (vm) => vm.mean_cpu_usage_cores, cell: (vm) => number(vm.mean_cpu_usage_cores), numeric: true },
    { label: "Latency-sensitive", value: (vm) => (vm.latency_sensitive ? "yes" : "no") },
  ];
  const s = host.summary;
  return [
    form(`/host/${encodeURIComponent(host.host)}`, "Time shown", "Show", field("Time", { name: "hours", value: route.parameters.hours ?? "1" }, HOURS)),
    s ? facts([
      ["State", state(hostState(s.connected, s.last_seen_unix_ns))],
      ["Platform", s.platform],
      ["Agent", s.agent_version],
      ["Last seen", time(s.last_seen_unix_ns)],
      ["Batches that wait there", count(s.spooled_batches)],
      ["Batches dropped there", count(s.dropped_batches)],
    ]) : h("p", { class: "quiet" }, "This host never connected itself; its windows were imported."),
    host.vms.length ? [
      worst.length ? timeChart("CPI", `${steps}; the ${worst.length} VMs furthest above their jobs' CPI. Shaded: incidents.`, seconds,
        worst.map((vm) => ({ label: short(vm), values: vm.cpi })), "cycles per instruction", spans, most)
        : h("p", { class: "empty" }, "No CPI is known of these VMs: the host has no hardware counters, or its agent may not read them (whitepanda doctor says which)."),
      timeChart("CPU usage", `${steps}; the ${busiest.length} VMs that use the most. Shaded: incidents.`, seconds,
        busiest.map((vm) => ({ label: short(vm), values: vm.cpu_usage_cores })), "cores", spans, most),
    ] : h("p", { class: "empty" }, "No windows of VMs here in this time. They are there once they are in the lake, a minute after they were measured."),
    section("VMs", table("host-vms", `VMs in this time, the most CPU first${host.vms_in_all > host.vms.length ? `: ${host.vms.length} of ${count(host.vms_in_all)}` : ""}`, vms, host.vms, "No VM ran.")),
    section("Incidents", table("host-incidents", "Incidents in this time, the last that began first",
      INCIDENT_COLUMNS.filter((column) => column.label !== "Host"), host.incidents, "No incident in this time.")),
  ];
}
