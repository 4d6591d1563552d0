// One host: who suffers there, beside its own baseline; any metrics of its VMs at any time; the host in all.
import { askBaseline, relative, usual } from "../baseline.js";
import { charts, COLOURS, timeChart } from "../charts.js";
import { facts, h, section } from "../dom.js";
import { count, counted, duration, isKnown, nanoseconds, none, number, plain, time } from "../format.js";
import { unlessUnknown } from "../api.js";
import { chosen, metric, withEnds, withInterval } from "../metrics.js";
import { inOneLine } from "../remedy.js";
import { askSeries, metricBoxes, POINTS, total } from "../series.js";
import { change, inLastDay, lastDay, span, spanForm } from "../span.js";
import { table } from "../table.js";
import { found, hardware, hostStates, INCIDENT_COLUMNS, jobLink, link, verdict, vmLink } from "../words.js";

const MOST_LINES = COLOURS; // each VM has one of its own
const LINES = MOST_LINES / 2; // where nobody chose
const MOST_LISTED = 1000; // by central
const BRIDGED_NS = 150e9; // gaps that are no gaps: windows may be longer than steps
const USUAL = ["cpi", "cpu_usage_cores"];
const mean = (known) => known.reduce((a, b) => a + b, 0) / known.length;
/** What a host has in all, as central groups it: sums over its VMs; pressures are their mean. */
const SUM_POINTS = 60; // of an hour: so that steps are not shorter than windows, and sums have all VMs
const TOTALS = [
  ["cpu_usage_cores"], ["memory_charged_bytes"], ["llc_occupancy_bytes"], ["memory_bandwidth_bytes_per_s"],
  ["pressure_cpu_some_ratio", mean], ["pressure_memory_some_ratio", mean],
];

export const title = ({ what }) => `Host ${what}`;

export async function load(ask, { what, parameters }) {
  const shown = span(parameters, POINTS);
  const metrics = chosen(parameters.metrics, USUAL);
  const times = lastDay(shown);
  const { project } = parameters;
  const scope = { hosts: [what], projects: project };
  const [host, sums, known] = await Promise.all([
    ask("v1/host-timeline", { host: what, project, ...times, points: 2, top: project ? MOST_LISTED : "" }),
    askSeries(ask, { ...scope, group_by: "host" }, TOTALS.map(([name]) => name), shown, SUM_POINTS),
    unlessUnknown(ask("v1/facts", { host: what, project, at_unix_ns: shown.isLive ? "" : nanoseconds(shown.until) })),
  ]);
  const choice = choose(host, parameters.vms);
  const open = host.incidents.find((i) => i.open);
  const [series, baseline, detail] = await Promise.all([
    choice.ids.length ? askSeries(ask, { ...scope, vms: choice.ids }, withEnds(metrics), shown) : null,
    askBaseline(ask, what, choice.ids, metrics, host.incidents, project),
    open ? unlessUnknown(ask(`v1/incidents/${open.id}`, { project })) : null,
  ]);
  return { shown, metrics, host, choice, series, baseline, sums, known: known?.host?.facts, detail };
}

/**
 * Which VMs are drawn: those that the link names, else victims first, then those that are the furthest above their job.
 *
 * @returns {object} with all VMs `listed`, victims first; `picked` and their `ids`, sorted by who is drawn, not by rank, so that a VM looks
 *   alike after the next answer; how many victims there are; and how many of those wanted are `left` out and `absent`.
 */
function choose(host, asked = "") {
  const wanted = new Set(asked.split(",").filter(Boolean));
  const rank = suffering(host);
  const victimsFirst = (a, b) => (rank.get(a.vm) ?? rank.size) - (rank.get(b.vm) ?? rank.size);
  const listed = [...host.vms].sort(victimsFirst);
  const worst = [...host.vms].sort((a, b) => victimsFirst(a, b) || (nCpi(b) ?? -Infinity) - (nCpi(a) ?? -Infinity));
  const named = host.vms.filter((vm) => wanted.has(vm.vm));
  const victims = listed.filter((vm) => rank.has(vm.vm));
  const picked = wanted.size ? named.slice(0, MOST_LINES) : worst.slice(0, Math.max(LINES, Math.min(victims.length, MOST_LINES)));
  const left = Math.max(0, (wanted.size ? named : victims).length - MOST_LINES);
  return { listed, picked, ids: picked.map((vm) => vm.vm).sort(), victims: victims.length, left, absent: wanted.size - named.length };
}

const path = (host) => `/host/${encodeURIComponent(host)}`;

/** By how many standard deviations a VM's CPI is above its job's mean. */
const nCpi = (vm) => (isKnown(vm.mean_cpi) && isKnown(vm.job_mean_cpi) && vm.job_std_cpi > 0 ? (vm.mean_cpi - vm.job_mean_cpi) / vm.job_std_cpi : null);

const slowdown = (vm) => (vm.latency_sensitive && isKnown(vm.mean_cpi) && vm.job_mean_cpi > 0 ? vm.mean_cpi / vm.job_mean_cpi : null);

const besideJob = (vm) => {
  if (!vm.latency_sensitive) return h("span", { title: "not latency-sensitive: its CPI says nothing of a slow-down" }, none("not latency-sensitive"));
  return isKnown(slowdown(vm)) ? `${plain(slowdown(vm))}x` : number(null);
};

/** Victims with their ranks: of open incidents first, the slowest now before others; then of those that are over. */
export const suffering = (host) => new Map([...new Set([...host.incidents].sort((a, b) => Number(b.open) - Number(a.open))
  .flatMap((i) => [i.slowest_now, ...i.victims]).filter(Boolean).map((vm) => vm.vm))].map((vm, k) => [vm, k]));

/** Times, [from, to] in seconds, in which any VM was measured; gaps of up to `most` steps are none. */
export function measured(vms, seconds, step, most) {
  const runs = [];
  seconds.forEach((at, k) => {
    if (!vms.some((vm) => Object.values(vm.values).some((values) => isKnown(values[k])))) return;
    const last = runs.at(-1);
    if (last && at - last[1] <= most * step) last[1] = at + step;
    else runs.push([at, at + step]);
  });
  return runs;
}

/** Incidents, without the times in which nobody measured. */
export function shaded(incidents, runs) {
  return incidents.flatMap((i) => runs
    .map(([from, to]) => [Math.max(from, i.first_unix_ns / 1e9), Math.min(to, i.last_unix_ns / 1e9)])
    .filter(([from, to]) => from <= to));
}

/** The VMs' charts: each VM beside its own baseline, so that one axis makes sense; or values as they are. */
function vmCharts(data, drawn, spans, isAbsolute) {
  const { series, metrics, host } = data;
  const most = Math.ceil(BRIDGED_NS / series.step);
  return metrics.map((name) => {
    const { label, unit } = metric(name);
    const isRatio = isAbsolute || name === "slow_down_ratio";
    const known = drawn.map(({ vm, name: called, colour }) => ({ vm, label: called, colour, ...withInterval(series.vms.find((each) => each.vm === vm)?.values ?? {}, name) }))
      .filter((line) => line.values.some(isKnown));
    if (!known.length) return label;
    const steps = `Steps of ${duration(series.step)}`;
    if (isRatio) return timeChart(label, `${steps}; ${counted(known.length, "VM")}. Shaded: incidents.`, series.seconds, known, unit, spans, most);
    const beside = known.map((line) => ({ line, is: usual(line.vm, name, data, host.incidents) }));
    const lines = beside.filter(({ is }) => is.value > 0).map(({ line, is }) => ({ ...line, values: relative(line.values, is) }));
    const without = beside.filter(({ is }) => !(is.value > 0)).map(({ line }) => line.label);
    if (!lines.length) return `${label}, beside its own baseline (no step without an incident, or 0 there)`;
    const calm = beside.every(({ is }) => !is.isBefore) ? "while it did not suffer"
      : `in the hour before the first incident${beside.every(({ is }) => is.isBefore || is.value === null) ? "" : ", else while it did not suffer"}`;
    const left = without.length ? ` Without a baseline, or with 0, not drawn: ${without.join(", ")}.` : "";
    const sentence = `${steps}; ${counted(lines.length, "VM")}, each beside its own median ${host.incidents.length ? calm : "in this time"}. Shaded: incidents.${left}`;
    return timeChart(`${label}, beside its own baseline`, sentence, series.seconds, lines, "times its own", spans, most);
  });
}

/** What of the VMs is not drawn, though it is asked for or suffers. */
function leftOut({ choice, series }) {
  const said = [
    choice.left > 0 && `${counted(choice.left, "more VM")} ${choice.left === 1 ? "is" : "are"} in incidents or chosen, but not drawn: at most ${MOST_LINES} are. Choose in the table of VMs.`,
    choice.absent > 0 && `${counted(choice.absent, "VM")} of those chosen ${choice.absent === 1 ? "is" : "are"} not in the table of VMs of this time.`,
    series?.isCut && `Only the first ${counted(series.vms.length, "VM")} of those chosen.`,
  ].filter(Boolean);
  return said.length > 0 && h("p", { class: "quiet", id: "host-left-out" }, said.join(" "));
}

function totals({ sums }, spans) {
  const most = Math.ceil(BRIDGED_NS / sums.step);
  return TOTALS.map(([name, join]) => {
    const values = total(sums.vms, name, join);
    const { label, unit } = metric(name);
    if (!values.some(isKnown)) return label;
    return timeChart(`${label}, ${join ? "mean of its VMs" : "its VMs in all"}`, `${counted(sums.vms[0]?.counts[name] ?? 0, "VM")}. Shaded: incidents.`, sums.seconds, [{ label: join ? "mean" : "in all", values }], unit, spans, most);
  });
}

export function draw(data, route) {
  const { host, series, sums, shown, metrics, detail, known, choice } = data;
  const { as = "" } = route.parameters;
  const { ids, listed } = choice;
  const name = (vm) => vm.name || vm.vm;
  const drawn = choice.picked.map((vm) => ({ vm: vm.vm, name: vm.name || `${vm.job} ${vm.vm.slice(0, 8)}`, colour: ids.indexOf(vm.vm) }));
  const spans = sums ? shaded(host.incidents, measured(sums.vms, sums.seconds, sums.step / 1e9, Math.ceil(BRIDGED_NS / sums.step))) : [];
  const pick = (vm, isWanted) => change({ vms: (isWanted ? [...ids, vm.vm] : ids.filter((each) => each !== vm.vm)).join(",") });
  const isFull = ids.length >= MOST_LINES;
  const times = { from: route.parameters.from, to: route.parameters.to, last: route.parameters.last };
  const vms = [
    { label: "VM", value: name, cell: (vm) => vmLink(vm, times) },
    { label: "Draw", isControl: true, value: (vm) => Number(ids.includes(vm.vm)), hint: "in the charts", cell: (vm) => h("input", {
      type: "checkbox", id: `draw-${vm.vm}`, "aria-label": `Draw ${name(vm)}`, checked: ids.includes(vm.vm), disabled: isFull && !ids.includes(vm.vm),
      onchange: (event) => pick(vm, event.target.checked) }) },
    { label: "Job", value: (vm) => vm.job, cell: (vm) => jobLink(vm.job) },
    { label: "When found", value: (vm) => vm.last_event?.behaviour ?? "", cell: (vm) => (vm.last_event ? found(vm.last_event) : ""), hint: "the last change of behaviour, with the host's estimate of the slow-down at that moment; of a VM that suffers no more, the worst while it did" },
    { label: "CPI", value: (vm) => vm.mean_cpi, cell: (vm) => number(vm.mean_cpi), numeric: true },
    { label: "Job's CPI", value: (vm) => vm.job_mean_cpi, cell: (vm) => number(vm.job_mean_cpi), numeric: true },
    { label: "CPI / job's", value: slowdown, cell: besideJob, numeric: true, hint: `mean CPI ${inLastDay(shown)} / its job's, of latency-sensitive VMs; a short slow-down hardly shows in it` },
    { label: "nCPI", value: nCpi, cell: (vm) => number(nCpi(vm)), numeric: true, hint: "standard deviations above the job's mean" },
    { label: "CPU, cores", value: (vm) => vm.mean_cpu_usage_cores, cell: (vm) => number(vm.mean_cpu_usage_cores), numeric: true },
    { label: "Latency-sensitive", value: (vm) => (vm.latency_sensitive ? "yes" : "no") },
  ];
  const s = host.summary;
  const advice = detail?.incident.recommendations.find((each) => each.action !== "nothing");
  const absolute = h("label", { class: "switch" }, h("input", { type: "checkbox", id: "as-absolute", checked: as === "values", onchange: (event) => change({ as: event.target.checked ? "values" : "" }) }), "values as they are");
  return [
    host.incidents.filter((i) => i.open).map((i) => verdict(i)),
    advice && h("p", { class: "remedy" }, h("strong", null, "What to do: "), inOneLine(advice), ". ", link(`/incident/${detail.incident.id}`, "How")),
    s ? facts([
      ["State", hostStates(s)],
      ["Platform", s.platform],
      ...hardware(known),
      ["Labels", known && Object.entries(known.labels ?? {}).map(([label, value]) => `${label}=${value}`).join(", ")],
      ["Agent", s.agent_version],
      ["Last seen", time(s.last_seen_unix_ns)],
      ["Batches that wait there", count(s.spooled_batches)],
      ["Batches dropped there", count(s.dropped_batches)],
      ["Keep it quiet", link("/silences", "silence", { host: host.host })],
    ]) : h("p", { class: "quiet" }, "This host never connected itself; its windows were imported."),
    spanForm(path(host.host), route.parameters, shown),
    h("div", { class: "choices" }, metricBoxes(metrics), absolute),
    sums?.vms.length ? [
      section(choice.victims ? "VMs that suffer, first" : "VMs", series ? charts(vmCharts(data, drawn, spans, as === "values")) : [], leftOut(data)),
      section("The host in all", charts(totals(data, spans))),
    ] : h("p", { class: "empty" }, "No windows of VMs here in this time. They are there once they are in the lake, a minute after they were measured."),
    section("VMs", table("host-vms", `VMs ${inLastDay(shown)}, ${choice.victims ? "victims first, then " : ""}the most CPU first${host.vms_in_all > host.vms.length ? `: ${host.vms.length} of ${count(host.vms_in_all)}` : ""}${isFull && host.vms.length > ids.length ? `; ${MOST_LINES} are drawn, no more can be: clear a box for another` : ""}`, vms, listed, "No VM ran.")),
    section("Incidents", table("host-incidents", `Incidents ${inLastDay(shown)}, the last that began first`,
      INCIDENT_COLUMNS.filter((column) => column.label !== "Host"), host.incidents, `No incident ${inLastDay(shown)}.`)),
  ];
}
