// Series of metrics from central: asked for by page, given as lines on one grid, with who is drawn and beside what.
import { unlessUnknown } from "./api.js";
import { change } from "./span.js";
import { h } from "./dom.js";
import { DAY_MS, isKnown, nanoseconds } from "./format.js";
import { groups, metric } from "./metrics.js";

/** Points of a line at most: steps become finer as the time becomes shorter. */
export const POINTS = 180;
const MOST_PAGES = 8;

/**
 * Steps of metrics of VMs, by `scope`: {vms, hosts, jobs, projects}; with `group_by` of hosts, jobs or projects in all. Null where central
 * knows no window of them.
 *
 * @returns {Promise} of {seconds, step, vms: [{vm, name, job, values: {metric: [...]}}]}; of groups `counts` has how many VMs at most have a metric.
 */
export async function askSeries(ask, scope, metrics, { since, until }, points = POINTS) {
  const asked = { ...scope, metrics, since_unix_ns: nanoseconds(since), until_unix_ns: nanoseconds(until), points };
  let found = null;
  let token = "";
  for (let page = 0; page < MOST_PAGES; page += 1) {
    const answer = await unlessUnknown(ask("v1/series", { ...asked, page_token: token }));
    if (!answer) break;
    found ??= { since: answer.since_unix_ns, until: answer.until_unix_ns, step: answer.step_ns, vms: [] };
    found.vms.push(...answer.vms.map((vm) => ({ vm: vm.vm, name: vm.name, job: vm.job, hosts: vm.places.map((each) => each.host),
      values: Object.fromEntries(vm.metrics.map((each) => [each.metric, each.mean])),
      counts: Object.fromEntries(vm.metrics.map((each) => [each.metric, Math.max(0, ...each.vms)])),
      why: Object.fromEntries(vm.metrics.map((each) => [each.metric, each.absences.find((absence) => absence.reason !== "no_windows")?.reason])) })));
    token = answer.next_page_token;
    if (!token) break;
  }
  if (!found) return null;
  const count = Math.round((found.until - found.since) / found.step);
  return { ...found, isCut: Boolean(token), seconds: Array.from({ length: count }, (_, k) => (found.since + k * found.step) / 1e9) };
}

/** The same of a day before, moved to the days shown. */
export const askYesterday = (ask, scope, metrics, { since, until }) => askSeries(ask, scope, metrics, { since: since - DAY_MS, until: until - DAY_MS });

/** Per step the sum over VMs, or another `join` of what is known. */
export function total(vms, name, join = (known) => known.reduce((a, b) => a + b, 0)) {
  const length = vms[0]?.values[name]?.length ?? 0;
  return Array.from({ length }, (_, k) => {
    const known = vms.map((vm) => vm.values[name]?.[k]).filter(isKnown);
    return known.length ? join(known) : null;
  });
}

/** Which metrics are drawn, as boxes; each change is a link. */
export function metricBoxes(drawn) {
  const box = ({ name, label, unit }) => h("label", { title: unit }, h("input", {
    type: "checkbox", id: `metric-${name}`, checked: drawn.includes(name), disabled: !drawn.includes(name) && drawn.length >= 8,
    onchange: (event) => change({ metrics: (event.target.checked ? [...drawn, name] : drawn.filter((each) => each !== name)).join(",") }),
  }), label);
  return h("details", { id: "metric-choice", class: "choice" }, h("summary", null, `Metrics: ${drawn.map((name) => metric(name).label).join(", ")}`),
    h("div", { class: "groups" }, groups().map(([group, metrics]) => h("fieldset", null, h("legend", null, group), metrics.map(box)))));
}
