// Did an upgrade help? WSMeter: how much to observe, and both sides compared.
import { AskError } from "../api.js";
import { facts, field, form, h, section } from "../dom.js";
import { count, isKnown, number, percent, plain, time } from "../format.js";
import { table } from "../table.js";
import { jobLink, state } from "../words.js";

export const title = () => "Upgrade: A/B evaluation";
export const isLive = false;

const METRICS = [["ipc", "instructions per cycle"], ["mips", "million instructions per s"]];
const SIDES = [["hosts", "by hosts"], ["platform", "by CPU platform"], ["time", "by time"]];

const planForm = ({ parameters: p }) =>
  form("/upgrade", "Plan an observation", "Plan",
    field("Margin, %", { name: "margin", value: p.margin ?? "", placeholder: "2", size: 6, inputmode: "decimal", id: "plan-margin" }),
    field("Metric", { name: "metric", value: p.metric ?? "ipc", id: "plan-metric" }, METRICS),
    field("Only platform", { name: "platform", value: p.platform ?? "", id: "plan-platform" }));

const compareForm = ({ parameters: p }) =>
  form("/upgrade", "Compare two sides", "Compare",
    field("Sides differ", { name: "by", value: p.by ?? "hosts", id: "compare-by" }, SIDES),
    field("New: hosts, platform, or since when", { name: "new", value: p.new ?? "", placeholder: "node7, node8", size: 30, id: "compare-new" }),
    field("Against: hosts or platform (none: the rest)", { name: "current", value: p.current ?? "", size: 30, id: "compare-current" }),
    field("Metric", { name: "metric", value: p.metric ?? "ipc", id: "compare-metric" }, METRICS));

const forms = (route) => [
  section("How much must be observed?", h("p", { class: "quiet" }, "The cheapest choice of jobs and VMs for an interval of this half width, % of the fleet's weighted metric."), planForm(route)),
  section("Did it help?", h("p", { class: "quiet" }, "One side has the change, the other has not. By time: a moment such as 2026-03-01T12:00; a day to both sides is compared."), compareForm(route)),
];
export { forms as form };
const NEW = "New: hosts, platform, or since when";
const CURRENT = "Against: hosts or platform";
export const LABELS = {
  margin_percent: "Margin, %", metric: "Metric", platform: "Only platform", new_hosts: NEW, new_platform: NEW, new_since_unix_ns: NEW,
  current_hosts: CURRENT, current_platform: CURRENT, current_since_unix_ns: CURRENT, current_until_unix_ns: CURRENT, new_until_unix_ns: NEW,
};

const names = (text = "") => text.split(",").map((each) => each.trim()).filter(Boolean);
const ns = (ms) => `${Math.round(ms)}000000`;
const DAY_MS = 86_400_000;

function comparison({ by = "hosts", new: changed, current, metric }) {
  if (by === "platform") return { new_platform: changed, current_platform: current, metric };
  if (by === "time") {
    const at = Date.parse(changed);
    if (Number.isNaN(at)) throw new AskError(400, `${changed} is no time; write one such as 2026-03-01T12:00`);
    const until = Math.min(at + DAY_MS, Date.now());
    return { current_since_unix_ns: ns(at - DAY_MS), current_until_unix_ns: ns(at), new_since_unix_ns: ns(at), new_until_unix_ns: ns(until), metric };
  }
  return { new_hosts: names(changed), current_hosts: names(current), current_rest: names(current).length ? undefined : true, metric };
}

export async function load(ask, { parameters: p }) {
  const [plan, compared] = await Promise.all([
    p.margin ? ask("v1/observation-plan", { margin_percent: p.margin, metric: p.metric, platform: p.platform }) : null,
    p.new ? ask("v1/comparison", comparison(p)) : null,
  ]);
  return { plan, compared };
}

const PLAN = [
  { label: "Job", value: (j) => j.job, cell: (j) => jobLink(j.job) },
  { label: "Observe", value: (j) => j.observe, cell: (j) => count(j.observe), numeric: true, hint: "VMs" },
  { label: "of", value: (j) => j.instances, cell: (j) => count(j.instances), numeric: true },
  { label: "Weight", value: (j) => j.weight, cell: (j) => percent(j.weight), numeric: true, hint: "share of the CPU that the planned jobs used" },
  { label: "Mean", value: (j) => j.mean, cell: (j) => number(j.mean, 3), numeric: true },
  { label: "Std", value: (j) => j.std, cell: (j) => number(j.std, 3), numeric: true },
  { label: "Cost", value: (j) => j.cost, cell: (j) => percent(j.cost, 2), numeric: true, hint: "share of the CPU that all jobs used" },
];

function planned(plan) {
  return section("Plan", facts([
    ["VMs to observe", count(plan.instances)],
    ["Cost, of the fleet's CPU", percent(plan.cost, 2)],
    ["Proven the cheapest", plan.is_optimal ? "yes" : `no: too dear by ${plain(plan.gap_ratio * 100, 1)} % at most`],
    ["Expected margin", `${plain(plan.expected_margin_percent, 2)} %`],
    [`Weighted ${plan.metric} now`, number(plan.metric_mean, 3)],
    ["Weight that is covered", percent(plan.coverage)],
    ["Jobs left out, too few VMs", count(plan.jobs_too_few)],
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
  const word = isClear ? (d.value > 0 ? "more" : "less") : "no difference can be told";
  return section("Comparison",
    h("p", { class: "verdict" }, state(isClear ? word : "over", isClear ? `The new side has ${word} ${c.metric}: ` : `By this much data ${word}: `), change(d)),
    facts([
      [`Current ${c.metric}`, estimate(c.current)],
      [`New ${c.metric}`, estimate(c.new)],
      ["p, that there is none", probability(c.p)],
      ["Weight that is covered", percent(c.coverage)],
      ["Machines", `${count(c.current_machines)} and ${count(c.new_machines)}`],
      ["VMs", `${count(c.current_instances)} and ${count(c.new_instances)}`],
      ["Left out", c.left_out.map((each) => `${each.reason} ${count(each.count)}`).join(", ")],
    ]),
    table("upgrade-jobs", `Jobs on both sides, the heaviest first: ${count(c.jobs.length)} of ${count(c.jobs_in_all)}`, JOBS, c.jobs, "No job is on both sides."));
}

export const draw = ({ plan, compared }, route) => [forms(route), plan && planned(plan), compared && answer(compared)];
