// One incident: who suffers and by how much, from whom, since when; the evidence; what to do.
import { timeChart } from "../charts.js";
import { facts, h, section } from "../dom.js";
import { count, counted, duration, isKnown, number, plain, slowDown, time } from "../format.js";
import { table } from "../table.js";
import { foundBy, hostLink, jobLink, link, verdict, vmLink } from "../words.js";

const LINES = 5;
const OPEN_ACTIONS = 2;
const GAP_SLOTS = 2.5;

export const title = ({ what }) => `Incident ${what}`;
export const load = (ask, { what }) => ask(`v1/incidents/${encodeURIComponent(what)}`);

const vmColumns = (peak, hint, at, ...more) => [
  { label: "VM", value: (vm) => vm.name || vm.vm, cell: (vm) => vmLink(vm, { at }) },
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
  { label: "Slot's end", value: (r) => r.unix_ns, cell: (r) => time(r.unix_ns) },
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

/** A list of words as a shell takes it. */
const quoted = (words) => words.map((word) => (/^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`)).join(" ");

// The words of `whitepanda explain`.
const DONE = {
  cap_cpu: (name) => `cap the CPU of ${name}`,
  limit_bandwidth: (name) => `limit the memory bandwidth of ${name}`,
  limit_cache: (name, victim) => `leave cache to ${victim}: limit ${name}`,
  migrate_suspect: (name) => `migrate ${name} (suspect)`,
  migrate_victim: (name) => `migrate ${name} (victim)`,
  nothing: () => "do nothing",
};
const SIGNALS = { mn_cpi: "mnCPI", degradation: "slow-down" };

const AT_LEAST = /^at least: /; // how hosts begin to say that a signal is cut

/**
 * What an action is expected to change: mnCPI 2.90 now, 1.90 (1.80 to 2.00) then; contention begins at 2.00.
 *
 * @param {object} expected effect of the action.
 * @param {boolean} isCut whether the signal may be higher than it is known to be.
 */
export function effect(expected, isCut = false) {
  const signal = SIGNALS[expected.signal] ?? expected.signal;
  const more = isCut ? " or more" : "";
  const before = isKnown(expected.before) ? `${signal} ${plain(expected.before)}${more} now` : `${signal} now not known`;
  const ends = isKnown(expected.low) && isKnown(expected.high) ? ` (${plain(expected.low)} to ${plain(expected.high)})` : "";
  const after = isKnown(expected.after) ? `${plain(expected.after)}${more}${ends} then` : "not known what then";
  const bar = isKnown(expected.threshold) ? `; contention begins at ${plain(expected.threshold)}` : "";
  const why = expected.unknown_because ? `. ${expected.unknown_because.replace(AT_LEAST, "")}${isKnown(expected.after) && expected.after < expected.before && isCut ? "; more may be needed" : ""}` : "";
  return `${before}, ${after}${bar}${why}`;
}

/** Have a command's text in the clipboard; where the browser gives none (no HTTPS), mark it, so that Ctrl+C takes it. */
async function copy(button, code) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code);
    button.textContent = "Press Ctrl+C";
  }
}

function command(given, id) {
  const code = h("code", { id: `${id}-text` }, quoted(given.words));
  const button = h("button", { type: "button", class: "copy", id, "aria-live": "polite", "aria-describedby": code.id, onclick: () => copy(button, code) }, "Copy");
  return h("p", null, `${given.purpose}: `, code, " ", button);
}

function action(recommended, k, isCut) {
  const amount = isKnown(recommended.amount) ? ` to ${plain(recommended.amount)} ${recommended.unit}` : "";
  const name = recommended.name || recommended.vm;
  const word = String(recommended.action);
  const done = Object.hasOwn(DONE, word) ? DONE[word](name, recommended.victim_name || recommended.victim) : `${word} ${name}`;
  return h("li", { class: "action" },
    h("h3", null, `${k + 1}. ${done}${amount}`),
    recommended.effect && h("p", null, h("strong", null, "Expected: "), effect(recommended.effect, isCut)),
    (recommended.evidence ?? []).map((line) => h("p", { class: "quiet" }, line)),
    (recommended.commands ?? []).map((given, c) => command(given, `command-${k + 1}-${c + 1}`)));
}

/** The first actions, and the others folded: what is least likely to be done is not to be scrolled past. */
function actions(recommended) {
  const isCut = recommended.some((each) => AT_LEAST.test(each.effect?.unknown_because ?? "")); // all are of one moment
  const made = recommended.map((each, k) => action(each, k, isCut));
  const rest = made.slice(OPEN_ACTIONS);
  return section("What to do", h("ol", { class: "actions" }, made.slice(0, OPEN_ACTIONS)),
    rest.length > 0 && h("details", { id: "more-actions" }, h("summary", null, counted(rest.length, "more action")),
      h("ol", { class: "actions", start: OPEN_ACTIONS + 1 }, rest)));
}

/** Reports with an empty one wherever more than two slots have none: a line does not go over what nobody measured. */
function withGaps(reports) {
  return reports.flatMap((report, k) => {
    const before = reports[k - 1];
    const isGap = before && report.slot_ns > 0 && report.unix_ns - before.unix_ns > GAP_SLOTS * report.slot_ns;
    return isGap ? [{ unix_ns: (report.unix_ns + before.unix_ns) / 2, mn_cpi: null, mn_cpi_threshold: null, victims: [], suspects: [] }, report] : [report];
  });
}

function charts(kept) {
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

export function draw(detail) {
  const i = detail.incident;
  const recommendations = i.recommendations ?? [];
  const rides = detail.recurrence;
  const hours = Math.min(24, Math.max(1, Math.ceil((i.last_unix_ns - i.first_unix_ns) / 3.6e12) + 1));
  const now = new Map((detail.reports.at(-1)?.victims ?? []).map((vm) => [vm.vm, vm.slow_down]));
  const around = Math.ceil(i.last_unix_ns / 1e6 / 60_000 + 15) * 60_000;
  return [
    verdict(i, { at: around }),
    facts([
      ["Found", foundBy(i.found_by)],
      ["Began", time(i.first_unix_ns)],
      ["Last reported", time(i.last_unix_ns)],
      ["Lasted", duration(i.last_unix_ns - i.first_unix_ns)],
      ["Reports", count(i.reports)],
      ["Peak mnCPI (threshold)", isKnown(i.peak_mn_cpi) && h("span", null, number(i.peak_mn_cpi), " (", number(i.peak_threshold), ")")],
      ["Host at that time", link(`/host/${encodeURIComponent(i.host)}`, "timeline", { hours: [1, 3, 6, 24].find((n) => n >= hours) ?? 24, at: around })],
      ["The suspect's job elsewhere", rides && link("/incidents", `${counted(rides.incidents, "incident")} on ${counted(rides.hosts, "host")}`, { suspect_job: rides.job })],
    ]),
    h("div", { class: "columns" },
      section("Victims", table("incident-victims", "The slowest first, at its worst", vmColumns("Peak nCPI", "standard deviations above its job's mean; cut at 3", around, ...(i.open ? [NOW(now)] : []), WORST), i.victims, "None.")),
      section("Suspects", table("incident-suspects", i.open ? "The first suspect now first" : "Whom most reports suspect first is first", vmColumns("Peak score", "coefficient * CPU usage", around, FIRST), i.suspects, "No VM that may be blamed."))),
    recommendations.length > 0 && actions(recommendations),
    h("div", { class: "columns" }, charts(detail.reports)),
    section("Evidence", table("incident-evidence", "What the host reported, the last 100 times, the oldest first", EVIDENCE, detail.reports, "Its reports are no longer kept.")),
  ];
}
