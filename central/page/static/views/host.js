// One host: what its VMs did over time, and when they suffered.
import { COLOURS, spark, timeChart } from "../charts.js";
import { facts, h, section } from "../dom.js";
import { count, counted, isKnown, nanoseconds, none, number, plain, time } from "../format.js";
import { span, spanForm } from "../span.js";
import { table } from "../table.js";
import { found, hostStates, INCIDENT_COLUMNS, jobLink, link, verdict, vmLink } from "../words.js";

const POINTS = 120;
const MOST_LINES = COLOURS; // each VM has one of its own
const LINES = MOST_LINES / 2; // of a chart where nobody chose: both may have other VMs
const BRIDGED_NS = 150e9; // gaps that are no gaps: windows may be longer than steps

export const title = ({ what }) => `Host ${what}`;

export function load(ask, { what, parameters }) {
  const { since, until } = span(parameters, POINTS);
  return ask("v1/host-timeline", { host: what, since_unix_ns: nanoseconds(since), until_unix_ns: nanoseconds(until), points: POINTS });
}

const path = (host) => `/host/${encodeURIComponent(host)}`;
const times = ({ what, parameters }) => spanForm(path(what), parameters);
export { times as form };

/** By how many standard deviations a VM's CPI is above its job's mean. */
const nCpi = (vm) => (isKnown(vm.mean_cpi) && isKnown(vm.job_mean_cpi) && vm.job_std_cpi > 0 ? (vm.mean_cpi - vm.job_mean_cpi) / vm.job_std_cpi : null);

const slowdown = (vm) => (vm.latency_sensitive && isKnown(vm.mean_cpi) && vm.job_mean_cpi > 0 ? vm.mean_cpi / vm.job_mean_cpi : null);

const besideJob = (vm) => {
  if (!vm.latency_sensitive) return h("span", { title: "not latency-sensitive: its CPI says nothing of a slow-down" }, none("not latency-sensitive"));
  return isKnown(slowdown(vm)) ? `${plain(slowdown(vm))}x` : number(null);
};

/** Victims of open incidents, each with its rank: the slowest now first, then by the worst that each one had. */
export const suffering = (host) => new Map([...new Set(host.incidents.filter((i) => i.open)
  .flatMap((i) => [i.slowest_now, ...i.victims]).filter(Boolean).map((vm) => vm.vm))].map((vm, k) => [vm, k]));

/** Times, [from, to] in seconds, in which any VM was measured; gaps of up to `most` steps are none. */
export function measured(host, seconds, most) {
  const step = host.step_ns / 1e9;
  const runs = [];
  seconds.forEach((at, k) => {
    if (!host.vms.some((vm) => isKnown(vm.cpu_usage_cores[k]))) return;
    const last = runs.at(-1);
    if (last && at - last[1] <= most * step) last[1] = at + step;
    else runs.push([at, at + step]);
  });
  return runs;
}

/** Incidents, without the times in which nobody measured. */
export function shaded(host, runs) {
  return host.incidents.flatMap((i) => runs
    .map(([from, to]) => [Math.max(from, i.first_unix_ns / 1e9), Math.min(to, i.last_unix_ns / 1e9)])
    .filter(([from, to]) => from <= to));
}

export function draw(host, route) {
  const name = (vm) => vm.name || vm.vm;
  const short = (vm) => vm.name || `${vm.job} ${vm.vm.slice(0, 8)}`;
  const seconds = (host.vms[0]?.cpi ?? []).map((_, k) => (host.since_unix_ns + k * host.step_ns) / 1e9);
  const wanted = new Set((route.parameters.vms ?? "").split(",").filter(Boolean));
  const chosen = host.vms.filter((vm) => wanted.has(vm.vm)).slice(0, MOST_LINES);
  const rank = suffering(host);
  const victimsFirst = (a, b) => (rank.get(a.vm) ?? rank.size) - (rank.get(b.vm) ?? rank.size);
  const listed = [...host.vms].sort(victimsFirst);
  const worst = host.vms.filter((vm) => isKnown(vm.mean_cpi))
    .sort((a, b) => victimsFirst(a, b) || (nCpi(b) ?? -Infinity) - (nCpi(a) ?? -Infinity)).slice(0, LINES);
  const busiest = host.vms.slice(0, LINES);
  const byCpi = chosen.length ? chosen.filter((vm) => isKnown(vm.mean_cpi)) : worst;
  const byUsage = chosen.length ? chosen : busiest;
  // By who is drawn, not by rank: a VM looks alike in both charts, and after the next answer.
  const drawn = new Set([...byCpi, ...byUsage].map((vm) => vm.vm));
  const colours = new Map([...drawn].sort().map((vm, k) => [vm, k]));
  const line = (vm, values) => ({ label: short(vm), values, colour: colours.get(vm.vm) });
  const which = (others) => (chosen.length ? "the VMs chosen below" : others);
  const most = Math.ceil(BRIDGED_NS / host.step_ns);
  const spans = shaded(host, measured(host, seconds, most));
  const choose = (vm, isWanted) => {
    const now = new Set(drawn);
    if (isWanted) now.add(vm.vm);
    else now.delete(vm.vm);
    const { vms: _, ...parameters } = route.parameters;
    location.hash = link(path(host.host), "", { ...parameters, vms: [...now].join(",") }).hash;
  };
  const isFull = drawn.size >= MOST_LINES;
  const steps = `Steps of ${Math.round(host.step_ns / 1e9)} s`;
  const vms = [
    { label: "VM", value: name, cell: (vm) => vmLink(vm, { hours: route.parameters.hours, at: route.parameters.at }) },
    { label: "Draw", value: (vm) => Number(drawn.has(vm.vm)), hint: "in the charts", cell: (vm) => h("input", {
      type: "checkbox", id: `draw-${vm.vm}`, "aria-label": `Draw ${name(vm)}`, checked: drawn.has(vm.vm), disabled: isFull && !drawn.has(vm.vm),
      onchange: (event) => choose(vm, event.target.checked) }) },
    { label: "Job", value: (vm) => vm.job, cell: (vm) => jobLink(vm.job) },
    { label: "When found", value: (vm) => vm.last_event?.behaviour ?? "", cell: (vm) => (vm.last_event ? found(vm.last_event) : ""), hint: "the last change of behaviour in this time, with the host's estimate of the slow-down at that moment; of a VM that suffers no more, the worst while it did" },
    { label: "CPI over time", value: (vm) => vm.mean_cpi, cell: (vm) => (isKnown(vm.mean_cpi) ? spark(vm.cpi, `CPI between ${plain(Math.min(...vm.cpi.filter(isKnown)))} and ${plain(Math.max(...vm.cpi.filter(isKnown)))}`, most) : number(null)) },
    { label: "CPI", value: (vm) => vm.mean_cpi, cell: (vm) => number(vm.mean_cpi), numeric: true },
    { label: "Job's CPI", value: (vm) => vm.job_mean_cpi, cell: (vm) => number(vm.job_mean_cpi), numeric: true },
    { label: "CPI / job's", value: slowdown, cell: besideJob, numeric: true, hint: "mean CPI over the time shown / its job's, of latency-sensitive VMs; a short slow-down hardly shows in it" },
    { label: "nCPI", value: nCpi, cell: (vm) => number(nCpi(vm)), numeric: true, hint: "standard deviations above the job's mean" },
    { label: "CPU, cores", value: (vm) => vm.mean_cpu_usage_cores, cell: (vm) => number(vm.mean_cpu_usage_cores), numeric: true },
    { label: "Latency-sensitive", value: (vm) => (vm.latency_sensitive ? "yes" : "no") },
  ];
  const s = host.summary;
  return [
    times(route),
    host.incidents.filter((i) => i.open).map((i) => verdict(i)),
    s ? facts([
      ["State", hostStates(s)],
      ["Platform", s.platform],
      ["Agent", s.agent_version],
      ["Last seen", time(s.last_seen_unix_ns)],
      ["Batches that wait there", count(s.spooled_batches)],
      ["Batches dropped there", count(s.dropped_batches)],
    ]) : h("p", { class: "quiet" }, "This host never connected itself; its windows were imported."),
    host.vms.length ? [
      byCpi.length ? timeChart("CPI", `${steps}; ${which(rank.size ? `${counted(byCpi.length, "VM")}, victims of the open incident first, then those furthest above their jobs' CPI` : `the ${counted(byCpi.length, "VM")} furthest above ${byCpi.length === 1 ? "its job's" : "their jobs'"} CPI`)}. Shaded: incidents.`, seconds,
        byCpi.map((vm) => line(vm, vm.cpi)), "cycles per instruction", spans, most)
        : h("p", { class: "empty" }, "No CPI is known of these VMs: the host has no hardware counters, or its agent may not read them (whitepanda doctor says which)."),
      timeChart("CPU usage", `${steps}; ${which(byUsage.length === 1 ? "the VM that uses the most" : `the ${byUsage.length} VMs that use the most`)}. Shaded: incidents.`, seconds,
        byUsage.map((vm) => line(vm, vm.cpu_usage_cores)), "cores", spans, most),
    ] : h("p", { class: "empty" }, "No windows of VMs here in this time. They are there once they are in the lake, a minute after they were measured."),
    section("VMs", table("host-vms", `VMs in this time, ${rank.size ? "victims of the open incident first, then " : ""}the most CPU first${host.vms_in_all > host.vms.length ? `: ${host.vms.length} of ${count(host.vms_in_all)}` : ""}${isFull && host.vms.length > drawn.size ? `; ${MOST_LINES} are drawn, no more can be: clear a box for another` : ""}`, vms, listed, "No VM ran.")),
    section("Incidents", table("host-incidents", "Incidents in this time, the last that began first",
      INCIDENT_COLUMNS.filter((column) => column.label !== "Host"), host.incidents, "No incident in this time.")),
  ];
}
