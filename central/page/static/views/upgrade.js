// Did an upgrade help? WSMeter: how much to observe, and both sides compared.
import { AskError } from "../api.js";
import { facts, field, form, h, section } from "../dom.js";
import { clock, count, isKnown, number, percent, plain, time } from "../format.js";
import { table } from "../table.js";
import { jobLink, state } from "../words.js";

export const title = () => "Upgrade: A/B evaluation";
export const isLive = false;

const METRICS = [["ipc", "instructions per cycle"], ["mips", "million instructions per s"]];
const SIDES = [["hosts", "by hosts"], ["platform", "by CPU platform"], ["time", "by time"]];

const NEW = "New: hosts, platform, or since when";
const CURRENT = "Against: hosts (none: the rest) or platform";
const MARGIN = "Margin, %";

const planForm = ({ parameters: p }) =>
  form("/upgrade", "Plan an observation", "Plan",
    field(MARGIN, { name: "margin", value: p.margin ?? "", placeholder: "2", size: 6, inputmode: "decimal", id: "plan-margin" }),
    field("Metric", { name: "metric", value: p.metric ?? "ipc", id: "plan-metric" }, METRICS),
    field("Only platform", { name: "platform", value: p.platform ?? "", id: "plan-platform" }));

const compareForm = ({ parameters: p }) =>
  form("/upgrade", "Compare two sides", "Compare",
    field("Sides differ", { name: "by", value: p.by ?? "hosts", id: "compare-by" }, SIDES),
    field(NEW, { name: "new", value: p.new ?? "", placeholder: "node7, node8", size: 30, id: "compare-new" }),
    field(CURRENT, { name: "current", value: p.current ?? "", size: 30, id: "compare-current" }),
    field("Metric", { name: "metric", value: p.metric ?? "ipc", id: "compare-metric" }, METRICS));

const forms = (route) => [
  section("How much must be observed?", h("p", { class: "quiet" }, "The cheapest choice of jobs and VMs for an interval of this half width, % of the fleet's weighted metric."), planForm(route)),
  section("Did it help?", h("p", { class: "quiet" }, "One side has the change, the other has not. By time: a moment such as 2026-03-01T12:00; a day to both sides is compared."), compareForm(route)),
];
export { forms as form };
export const LABELS = {
  margin_percent: MARGIN, metric: "Metric", platform: "Only platform", new_hosts: NEW, new_platform: NEW, new_since_unix_ns: NEW,
  current_hosts: CURRENT, current_platform: CURRENT, current_since_unix_ns: "Beginning of the day before", current_until_unix_ns: "End of the day before",
  new_until_unix_ns: "End of the day after",
};

const NEEDED = { hosts: "the hosts that have the change", platform: "the platform that is new", time: "the moment of the change, such as 2026-03-01T12:00" };

const names = (text = "") => text.split(",").map((each) => each.trim()).filter(Boolean);
const ns = (ms) => `${Math.round(ms)}000000`;
const DAY_MS = 86_400_000;

const wrong = (message) => new AskError(400, message);

function comparison({ by = "hosts", new: changed, current, metric }) {
  if (!SIDES.some(([way]) => way === by)) throw wrong(`by=${by} is no way to compare; it is one of ${SIDES.map(([way]) => way).join(", ")}`);
  const isNone = by === "hosts" ? !names(changed).length : !changed;
  if (isNone) throw wrong(`“${NEW}” is empty; name ${NEEDED[by]}`);
  if (by === "platform") {
    if (!current) throw wrong(`“${CURRENT}” is empty; name the platform to compare ${changed} with`);
    return { new_platform: changed, current_platform: current, metric };
  }
  if (by === "time") {
    const at = Date.parse(changed);
    if (Number.isNaN(at)) throw wrong(`${changed} is no time; write one such as 2026-03-01T12:00`);
    if (at >= Date.now()) throw wrong(`${changed} is in the future; give the moment of a change that was made, such as ${clock(Date.now() - DAY_MS).slice(0, 16).replace(" ", "T")}`);
    if (at < DAY_MS) throw wrong(`${changed} is too early; the day before it is compared too, and times begin in 1970`);
    if (current) throw wrong(`“${CURRENT}” has ${current}; by time the day before is compared: leave it empty`);
    const until = Math.min(at + DAY_MS, Date.now());
    return { current_since_unix_ns: ns(at - DAY_MS), current_until_unix_ns: ns(at), new_since_unix_ns: ns(at), new_until_unix_ns: ns(until), metric };
  }
  return { new_hosts: names(changed), current_hosts: names(current), current_rest: names(current).length ? undefined : true, metric };
}

function observation({ margin, metric, platform }) {
  if (!margin) throw wrong(`“${MARGIN}” is empty; give the half width of the interval, such as 2`);
  return { margin_percent: margin, metric, platform };
}

export async function load(ask, { parameters: p }) {
  const compares = [p.by, p.new, p.current].some((each) => each !== undefined);
  const plans = p.margin !== undefined || (!compares && Object.keys(p).length > 0);
  const [plan, compared] = await Promise.all([
    plans ? ask("v1/observation-plan", observation(p)) : null,
    compares ? ask("v1/comparison", comparison(p)) : null,
  ]);
  return { plan, compared };
}

const PLAN = [
  { label: "Job", value: (j) => j.job, cell: (j) => jobLink(j.job) },
  { label: "Observe", value: (j) => j.observe, cell: (j) => count(j.observe), numeric: true, hint: "VMs" },
  { label: "of", value: (j) => j.instances, cell: (j) => count(j.instances), numeric: true },
  { label: "Weight", value: (j) => j.weight, cell: (j) => percent(j.weight), numeric: true, hint: "share of the planned jobs' CPU quota" },
  { label: "Mean", value: (j) => j.mean, cell: (j) => number(j.mean, 3), numeric: true },
  { label: "Std", value: (j) => j.std, cell: (j) => number(j.std, 3), numeric: true },
  { label: "Cost", value: (j) => j.cost, cell: (j) => percent(j.cost, 2), numeric: true, hint: "share of all jobs' CPU quota" },
];

/** Why jobs are left out, by the reasons of central. */
const REASONS = {
  too_few: "with fewer than 4 VMs",
  without_spread: "with one VM, or VMs that are all alike",
  only_current: "on the current side only",
  only_new: "on the new side only",
  no_weight: "without a known CPU quota on the current side",
};
const REASONS_OF_SIDES = { ...REASONS, too_few: "with fewer than 4 VMs, or one machine, on a side" };

const leftOut = (counts, reasons = REASONS) =>
  counts.filter(([, jobs]) => jobs > 0).map(([reason, jobs]) => `${count(jobs)} ${reasons[reason] ?? reason}`).join(", ");

function planned(plan) {
  return section("Plan", facts([
    ["VMs to observe", count(plan.instances)],
    ["Cost, of the fleet's CPU quota", percent(plan.cost, 2)],
    ["Proven the cheapest", plan.is_optimal ? "yes" : `no: too dear by ${plain(plan.gap_ratio * 100, 1)} % at most`],
    ["Expected margin", `${plain(plan.expected_margin_percent, 2)} %`],
    [`Weighted ${plan.metric} now`, number(plan.metric_mean, 3)],
    ["Weight that is covered", percent(plan.coverage)],
    ["Jobs left out", leftOut([["too_few", plan.jobs_too_few], ["without_spread", plan.jobs_without_spread], ["no_weight", plan.jobs_no_weight]]) || "none"],
    ["From", time(plan.since_unix_ns)],
  ]), table("upgrade-plan", "How many VMs of which job, the heaviest job first", PLAN, plan.jobs, "No job is planned."));
}

const change = (e, digits = 2) => (e && isKnown(e.value) ? `${e.value > 0 ? "+" : ""}${plain(e.value, digits)} % (${plain(e.low, digits)} to ${plain(e.high, digits)})` : number(null));
const estimate = (e) => (e && isKnown(e.value) ? `${plain(e.value, 3)} (${plain(e.low, 3)} to ${plain(e.high, 3)})` : number(null));

const JOBS = [
  { label: "Job", value: (j) => j.job, cell: (j) => jobLink(j.job) },
  { label: "Weight", value: (j) => j.weight, cell: (j) => percent(j.weight), numeric: true },
  { label: "Current", value: (j) => j.current, cell: (j) => number(j.current, 3), numeric: true },
  { label: "New", value: (j) => j.new, cell: (j) => number(j.new, 3), numeric: true },
  { label: "Change", value: (j) => j.difference_percent?.value, cell: (j) => change(j.difference_percent), numeric: true },
  { label: "Adjusted p", value: (j) => j.adjusted_p, cell: (j) => probability(j.adjusted_p), numeric: true },
  { label: "Verdict", value: (j) => j.verdict },
];

/** A p value; one too small for its digits is no zero. */
function probability(p) {
  return isKnown(p) && p < 0.0001 ? "< 0.0001" : number(p, 4);
}

function answer(c) {
  const d = c.difference_percent;
  const isClear = d && isKnown(d.low) && (d.low > 0 || d.high < 0);
  const word = isClear ? (d.value > 0 ? "more" : "less") : "no difference shown";
  return section("Comparison",
    h("p", { class: "verdict" }, state(isClear ? word : "over", isClear ? `The new side has ${word} ${c.metric}: ` : `By this much data ${word}: `), change(d)),
    facts([
      [`Current ${c.metric}`, estimate(c.current)],
      [`New ${c.metric}`, estimate(c.new)],
      ["p, that there is none", probability(c.p)],
      ["Weight that is covered", percent(c.coverage)],
      ["Machines", `${count(c.current_machines)} and ${count(c.new_machines)}`],
      ["VMs", `${count(c.current_instances)} and ${count(c.new_instances)}`],
      ["Jobs left out", leftOut(c.left_out.map((each) => [each.reason, each.count]), REASONS_OF_SIDES) || "none"],
    ]),
    table("upgrade-jobs", `Jobs on both sides, the heaviest first: ${count(c.jobs.length)} of ${count(c.jobs_in_all)}`, JOBS, c.jobs, "No job is on both sides."));
}

export const draw = ({ plan, compared }, route) => [forms(route), plan && planned(plan), compared && answer(compared)];
