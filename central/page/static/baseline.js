// What is usual for a VM: its values in the hour before the first incident that is shown, whatever the zoom.
import { unlessUnknown } from "./api.js";
import { isKnown, nanoseconds } from "./format.js";
import { askSeries } from "./series.js";

const HOUR_MS = 3_600_000;
const MINUTE_MS = 60_000;
const STEPS = 60;
const SLOT_S = 300; // an incident begins with the end of its first slot, which may be as long
const MOST_INCIDENTS = 100;

/** The middle of what is known; null without any. */
export function median(values) {
  const known = values.filter(isKnown).sort((a, b) => a - b);
  return known.length ? known[Math.floor((known.length - 1) / 2)] : null;
}

/** Times [from, to] in seconds in which a VM suffered. */
const suffered = (incidents, vm) => incidents.filter((i) => i.victims.some((each) => each.vm === vm)).map((i) => [i.first_unix_ns / 1e9 - SLOT_S, i.last_unix_ns / 1e9]);

/**
 * Steps of the hour before the first of these incidents, on their host. Null without an incident, or where nothing is known of that hour.
 *
 * @returns {Promise} of what `askSeries` gives, with the `incidents` of that hour and its end, `before`, in seconds.
 */
export async function askBaseline(ask, host, vms, metrics, incidents, project) {
  if (!vms.length || !incidents.length) return null;
  const before = Math.min(...incidents.map((i) => i.first_unix_ns)) / 1e9 - SLOT_S;
  const until = Math.ceil((before * 1e3) / MINUTE_MS) * MINUTE_MS; // a refresh asks the same
  const since = until - HOUR_MS;
  const [series, earlier] = await Promise.all([
    askSeries(ask, { vms, hosts: [host], projects: project }, metrics, { since, until }, STEPS),
    unlessUnknown(ask("v1/incidents", { host, project, since_unix_ns: nanoseconds(since), until_unix_ns: nanoseconds(until), page_size: MOST_INCIDENTS })),
  ]);
  return series && { ...series, before, incidents: earlier?.incidents ?? [] };
}

/** A VM's median over the steps of a series that touch none of `spans`; null without such a step. */
function calm(series, vm, name, spans) {
  const values = series?.vms.find((each) => each.vm === vm)?.values[name] ?? [];
  const length = series ? series.step / 1e9 : 0;
  return median(values.filter((_, k) => !spans.some(([from, to]) => series.seconds[k] + length > from && series.seconds[k] <= to)));
}

/**
 * A VM's usual value of a metric, and whether it is of the hour before; else it is of the steps shown in which the VM did not suffer.
 * Null without such a step: a median of disturbed ones says nothing.
 */
export function usual(vm, name, { series, baseline }, incidents) {
  const before = baseline ? calm(baseline, vm, name, [...suffered(baseline.incidents, vm), [baseline.before, Infinity]]) : null;
  return { value: before ?? calm(series, vm, name, suffered(incidents, vm)), isBefore: before !== null };
}

/** Values beside what is usual; none where that is not known, or 0. */
export const relative = (values, { value }) => (value > 0 ? values.map((each) => (isKnown(each) ? each / value : null)) : []);
