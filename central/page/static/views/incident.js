// One incident: who suffers and by how much, from whom, since when; what to do; what else changed then; the evidence.
import { unlessUnknown } from "../api.js";
import { askBaseline, relative, usual } from "../baseline.js";
import { charts, timeChart } from "../charts.js";
import { facts, h, section } from "../dom.js";
import { count, counted, duration, exact, isKnown, number, plain, slowDown, time } from "../format.js";
import { acknowledgeForm, noteForm, silenceForm } from "../people.js";
import { withEnds, withInterval } from "../metrics.js";
import { actions } from "../remedy.js";
import { askSeries, POINTS } from "../series.js";
import { span, spanForm } from "../span.js";
import { table } from "../table.js";
import { foundBy, jobLink, link, verdict, vmLink } from "../words.js";

const LINES = 5;
const GAP_SLOTS = 2.5;
const AROUND_MS = 600_000; // the timeline begins so long before, and ends so long after
const GRID_MS = 10_000;
const BRIDGED_NS = 150e9;

export const title = ({ what }) => `Incident ${what}`;

export async function load(ask, { what, parameters }) {
  const address = `v1/incidents/${encodeURIComponent(what)}`;
  const { project } = parameters;
  const [detail, changes] = await Promise.all([ask(address, { project }), unlessUnknown(ask(`${address}/timeline`, { project }))]);
  const i = detail.incident;
  const first = i.first_unix_ns / 1e6 - AROUND_MS;
  const last = Math.min(i.last_unix_ns / 1e6 + AROUND_MS, Date.now());
  const around = { since: Math.floor(first), until: Math.ceil(last / GRID_MS) * GRID_MS, isLive: false };
  const shown = parameters.from || parameters.to || parameters.last ? span(parameters, POINTS) : around;
  const vms = [...i.victims.slice(0, LINES), ...i.suspects.slice(0, LINES)].map((vm) => vm.vm);
  const [series, baseline] = await Promise.all([
    vms.length ? askSeries(ask, { vms: [...new Set(vms)] }, withEnds(["slow_down_ratio", "cpi", "cpu_usage_cores"]), shown) : null,
    askBaseline(ask, i.host, i.victims.slice(0, LINES).map((vm) => vm.vm), ["cpi"], [i]),
  ]);
  return { ...detail, changes, shown, series, baseline };
}

const vmColumns = (peak, hint, at, ...more) => [
  { label: "VM", value: (vm) => vm.name || vm.vm, cell: (vm) => vmLink(vm, at) },
  { label: "Job", value: (vm) => vm.job, cell: (vm) => jobLink(vm.job) },
  ...more,
  { label: peak, value: (vm) => vm.peak, cell: (vm) => number(vm.peak), numeric: true, hint },
  { label: "Reports", value: (vm) => vm.reports, cell: (vm) => count(vm.reports), numeric: true },
];
const FIRST = { label: "First in", value: (vm) => vm.first_reports, cell: (vm) => count(vm.first_reports), numeric: true, hint: "reports that suspect it first" };
const WORST = { label: "Worst slow-down", value: (vm) => vm.slow_down?.ratio, cell: (vm) => slowDown(vm.slow_down), numeric: true };
const NOW = (victims) => ({ label: "Slow-down now", value: (vm) => victims.get(vm.vm)?.ratio, cell: (vm) => slowDown(victims.get(vm.vm)), numeric: true, hint: "in the last report" });

/** Who is suspected first in a report: found by the host's own analysis, or scored above 0. */
const first = ({ suspects: [vm] }) => (vm && (vm.inflicts || vm.score > 0) ? vm : null);
const name = (vm) => vm?.name || vm?.vm || "";

const EVIDENCE = [
  { label: "Slot's end", value: (r) => r.unix_ns, cell: (r) => exact(r.unix_ns), isTime: true },
  { label: "Slowest victim", value: (r) => name(r.victims[0]), cell: (r) => name(r.victims[0]) || number(null) },
  { label: "Its slow-down", value: (r) => r.victims[0]?.slow_down?.ratio, cell: (r) => slowDown(r.victims[0]?.slow_down), numeric: true },
  { label: "Its nCPI", value: (r) => r.victims[0]?.n_cpi, cell: (r) => number(r.victims[0]?.n_cpi), numeric: true, hint: "standard deviations above its job's mean; cut at 3" },
  { label: "First suspect", value: (r) => name(first(r)), cell: (r) => name(first(r)) || number(null) },
  { label: "Its CPU, cores", value: (r) => first(r)?.cpu_usage_cores, cell: (r) => number(first(r)?.cpu_usage_cores), numeric: true },
  { label: "Its score", value: (r) => first(r)?.score, cell: (r) => number(first(r)?.score), numeric: true, hint: "coefficient * CPU usage" },
  { label: "Found by", value: (r) => r.found_by.join(", ") },
  { label: "mnCPI", value: (r) => r.mn_cpi, cell: (r) => number(r.mn_cpi), numeric: true },
  { label: "Threshold", value: (r) => r.mn_cpi_threshold, cell: (r) => number(r.mn_cpi_threshold), numeric: true },
];

/** Reports with an empty one wherever more than two slots have none: a line does not go over what nobody measured. */
function withGaps(reports) {
  return reports.flatMap((report, k) => {
    const before = reports[k - 1];
    const isGap = before && report.slot_ns > 0 && report.unix_ns - before.unix_ns > GAP_SLOTS * report.slot_ns;
    return isGap ? [{ unix_ns: (report.unix_ns + before.unix_ns) / 2, mn_cpi: null, mn_cpi_threshold: null, victims: [], suspects: [] }, report] : [report];
  });
}

function evidence(kept) {
  if (!kept.length) return [];
  const reports = withGaps(kept);
  const seconds = reports.map((report) => report.unix_ns / 1e9);
  const best = new Map();
  for (const report of reports) {
    for (const suspect of report.suspects) {
      if (isKnown(suspect.score)) best.set(suspect.vm, { name: suspect.name || suspect.vm, score: Math.max(suspect.score, best.get(suspect.vm)?.score ?? -Infinity) });
    }
  }
  const highest = [...best].sort(([, a], [, b]) => b.score - a.score).slice(0, LINES);
  const slowest = reports.map((r) => r.victims[0]?.slow_down);
  const ratios = (isOfCpi) => slowest.map((found) => (found && (found.model === "cpi") === isOfCpi ? found.ratio : null));
  const lines = [{ label: "latency", values: ratios(false), points: true }, { label: "CPI", values: ratios(true), points: true }].filter((line) => line.values.some(isKnown));
  return [
    lines.length > 0 && timeChart("Slow-down", `Of the slowest victim in ${counted(kept.length, "report")}.`, seconds, lines, "times undisturbed"),
    reports.some((r) => isKnown(r.mn_cpi)) && timeChart("Contention", `mnCPI of the victims in ${counted(kept.length, "report")}, against the threshold.`, seconds, [
      { label: "mnCPI", values: reports.map((r) => r.mn_cpi), points: true },
      { label: "threshold", values: reports.map((r) => r.mn_cpi_threshold), dash: true },
    ], "mnCPI"),
    highest.length > 0 && timeChart("Suspects", `Scores of ${counted(highest.length, "suspect")} over time, the highest: ${highest.map(([, s]) => `${s.name} ${plain(s.score)}`).join(", ")}.`, seconds,
      highest.map(([vm, s]) => ({ label: s.name, values: reports.map((r) => r.suspects.find((x) => x.vm === vm)?.score ?? null), points: true })), "score"),
  ];
}

const CHANGES = [
  { label: "Mark", value: (c) => c.mark },
  { label: "When", value: (c) => c.unix_ns, cell: (c) => exact(c.unix_ns), isTime: true },
  { label: "What", value: (c) => c.kind.replaceAll("_", " ") },
  { label: "VM", value: (c) => c.name || c.vm, cell: (c) => (c.vm ? vmLink(c) : "") },
  { label: "Words", value: (c) => c.text },
];

/** A line per victim of what `of` makes of its series; those of which nothing is known are left out. */
function victimLines(series, i, of) {
  return i.victims.slice(0, LINES).map((vm, k) => {
    const mine = series.vms.find((each) => each.vm === vm.vm);
    return { vm: vm.vm, label: name(vm), colour: k, ...(mine ? of(mine) : { values: [] }) };
  }).filter((line) => line.values.some(isKnown));
}

/** Victims, suspects and what else changed, on one time. */
function timeline({ series, baseline, incident: i }, changes) {
  if (!series) return h("p", { class: "empty" }, "No windows of its VMs are in the lake for this time.");
  const most = Math.ceil(BRIDGED_NS / series.step);
  const spans = [[i.first_unix_ns / 1e9, i.last_unix_ns / 1e9]];
  const marks = changes.map((c) => ({ at: c.unix_ns / 1e9, label: c.mark }));
  const victims = victimLines(series, i, (mine) => withInterval(mine.values, "slow_down_ratio"));
  const known = victimLines(series, i, (mine) => ({ values: mine.values.cpi ?? [] }));
  const cpis = known.map((line) => ({ ...line, values: relative(line.values, usual(line.vm, "cpi", { baseline }, [])) })).filter((line) => line.values.length);
  const without = known.filter((line) => !cpis.some((each) => each.vm === line.vm)).map((line) => line.label);
  const unknown = without.length > 0 ? ` Nothing is known of the hour before of ${without.join(", ")}.` : "";
  const suspects = i.suspects.slice(0, LINES).map((vm, k) => ({ label: name(vm), colour: k + 3, values: series.vms.find((each) => each.vm === vm.vm)?.values.cpu_usage_cores ?? [] }))
    .filter((line) => line.values.some(isKnown));
  const said = `Steps of ${duration(series.step)}. Shaded: the incident${changes.length ? "; lettered: what else changed" : ""}.`;
  return charts([
    victims.length ? timeChart("Victims: slow-down", said, series.seconds, victims, "times undisturbed", spans, most, marks) : "the victims' slow-down",
    cpis.length ? timeChart("Victims: CPI, beside the hour before the incident", `${said}${unknown}`, series.seconds, cpis, "times before", spans, most, marks)
      : known.length ? "the victims' CPI beside the hour before the incident, of which nothing is known" : "the victims' CPI",
    suspects.length ? timeChart("Suspects: CPU usage", said, series.seconds, suspects, "cores", spans, most, marks) : "the suspects' usage",
  ], "charts one");
}

const letter = (k) => (k < 26 ? String.fromCharCode(65 + k) : String(k + 1));

/** Who took it on, what keeps it quiet, what people wrote; and the forms for it. */
function people({ incident: i, notes }) {
  const first = i.suspect ?? i.suspects[0];
  return section("People",
    i.acknowledged_by ? h("p", null, h("strong", null, `Taken by ${i.acknowledged_by}`), ", ", time(i.acknowledged_unix_ns), `: ${i.acknowledgement}`) : h("p", { class: "quiet" }, "Nobody has acknowledged it."),
    i.silenced_by > 0 && h("p", null, link("/silences", `Silence #${i.silenced_by}`), " keeps it quiet."),
    notes.length > 0 && h("ul", { class: "notes" }, notes.map((note) => h("li", null, note.text, h("span", { class: "quiet" }, ` ${note.by}, `, time(note.unix_ns))))),
    h("div", { class: "forms" },
      !i.acknowledged_by && acknowledgeForm(i.id),
      noteForm(i.id),
      h("details", { id: "silence-this" }, h("summary", null, "Silence"), silenceForm({ host: i.host, job: first?.job }))));
}

export function draw(detail, route) {
  const i = detail.incident;
  const recommendations = i.recommendations ?? [];
  const rides = detail.recurrence;
  const now = new Map((detail.reports.at(-1)?.victims ?? []).map((vm) => [vm.vm, vm.slow_down]));
  const around = { from: Math.floor(i.first_unix_ns / 1e6 - AROUND_MS), to: Math.ceil(i.last_unix_ns / 1e6 + AROUND_MS) };
  const changes = (detail.changes?.changes ?? []).map((each, k) => ({ ...each, mark: letter(k) }));
  return [
    verdict(i, around),
    recommendations.length > 0 && actions(recommendations),
    people(detail),
    section("What happened", spanForm(`/incident/${route.what}`, route.parameters, detail.shown), timeline(detail, changes),
      table("incident-changes", "What else changed on the host, 10 minutes before to after", CHANGES, changes, "Nothing else is known to have changed on the host, from 10 minutes before to after."),
      detail.changes?.changes_left_out && h("p", { class: "quiet" }, "More changed than is listed.")),
    h("div", { class: "columns" },
      section("Victims", table("incident-victims", "The slowest first, at its worst", vmColumns("Peak nCPI", "standard deviations above its job's mean; cut at 3", around, ...(i.open ? [NOW(now)] : []), WORST), i.victims, "None.")),
      section("Suspects", table("incident-suspects", i.open ? "The first suspect now first" : "Whom most reports suspect first is first", vmColumns("Peak score", "coefficient * CPU usage", around, FIRST), i.suspects, "No VM that may be blamed."))),
    section("Evidence", facts([
      ["Found", foundBy(i.found_by)],
      ["Began", time(i.first_unix_ns)],
      ["Last reported", time(i.last_unix_ns)],
      ["Lasted", duration(i.last_unix_ns - i.first_unix_ns)],
      ["Reports", count(i.reports)],
      ["Peak mnCPI (threshold)", isKnown(i.peak_mn_cpi) && h("span", null, number(i.peak_mn_cpi), " (", number(i.peak_threshold), ")")],
      ["Host at that time", link(`/host/${encodeURIComponent(i.host)}`, "all its VMs", around)],
      ["The suspect's job elsewhere", rides && link("/incidents", `${counted(rides.incidents, "incident")} on ${counted(rides.hosts, "host")}`, { suspect_job: rides.job })],
    ]),
    h("div", { class: "columns" }, evidence(detail.reports)),
    table("incident-evidence", "What the host reported, the last 100 times, the oldest first", EVIDENCE, detail.reports, "Its reports are no longer kept.")),
  ];
}
