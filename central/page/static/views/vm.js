// One VM: what happened to it and what to do; any of its metrics at any time, beside yesterday or another VM.
import { unlessUnknown } from "../api.js";
import { charts, timeChart } from "../charts.js";
import { facts, field, form, h, section } from "../dom.js";
import { bytes, counted, duration, exact, isKnown, nanoseconds, number, slowDown, time } from "../format.js";
import { chosen, metric, withEnds, withInterval } from "../metrics.js";
import { actions, inOneLine } from "../remedy.js";
import { askSeries, askYesterday, metricBoxes, POINTS } from "../series.js";
import { inLastDay, lastDay, span, spanForm } from "../span.js";
import { table } from "../table.js";
import { found, hostLink, INCIDENT_COLUMNS, jobLink, link, state, suspect } from "../words.js";

const USUAL = ["slow_down_ratio", "cpi", "cpu_usage_cores", "llc_occupancy_bytes", "memory_bandwidth_bytes_per_s"];
const BRIDGED_NS = 150e9;

export const title = ({ what }, data) => `VM ${data?.history?.name || data?.known?.versions[0]?.facts.name || data?.series?.vms[0]?.name || what}`;

export async function load(ask, { what, parameters }) {
  const shown = span(parameters, POINTS);
  const metrics = chosen(parameters.metrics, USUAL);
  const times = lastDay(shown);
  const other = parameters.compare && parameters.compare !== "yesterday" ? parameters.compare : "";
  const { project } = parameters;
  const address = `v1/vms/${encodeURIComponent(what)}/history`;
  const history = await unlessUnknown(ask(address, { ...times, max_windows: 1, project }));
  const vm = history?.vm ?? what;
  const asked = { vms: [vm], projects: project };
  const [series, beside, incidents, known] = await Promise.all([
    askSeries(ask, asked, withEnds(metrics), shown),
    other ? askSeries(ask, { ...asked, vms: [other] }, metrics, shown) : parameters.compare ? askYesterday(ask, asked, metrics, shown) : null,
    unlessUnknown(ask("v1/incidents", { vm, project, page_size: 50 })),
    unlessUnknown(ask("v1/facts", { vm, project, at_unix_ns: shown.isLive ? "" : nanoseconds(shown.until) })),
  ]);
  const last = incidents?.incidents[0];
  const detail = last ? await unlessUnknown(ask(`v1/incidents/${last.id}`, { project })) : null;
  if (!history && !series && !last && !known) await ask(address, { ...times, project }); // says what is not known
  return { shown, metrics, history, series, beside, incidents: incidents?.incidents ?? [], detail, other, known };
}

const VERSIONS = [
  { label: "From", value: (v) => v.facts.unix_ns, cell: (v) => exact(v.facts.unix_ns), isTime: true },
  { label: "Until", value: (v) => v.until_unix_ns, cell: (v) => (v.until_unix_ns ? exact(v.until_unix_ns) : "now"), isTime: true },
  { label: "Host", value: (v) => v.host, cell: (v) => hostLink(v.host) },
  { label: "vCPUs", value: (v) => v.facts.vcpus, numeric: true },
  { label: "Quota, cores", value: (v) => v.facts.cpu_quota_cores, cell: (v) => (isKnown(v.facts.cpu_quota_cores) ? number(v.facts.cpu_quota_cores) : ""), numeric: true },
  { label: "Memory", value: (v) => v.facts.memory_bytes, cell: (v) => (v.facts.memory_bytes ? bytes(v.facts.memory_bytes) : ""), numeric: true },
  { label: "NUMA nodes", value: (v) => (v.facts.numa_nodes ?? []).join(", "), hint: "where a tenth of its memory or more is" },
  { label: "Flavor", value: (v) => v.facts.flavor },
  { label: "Image", value: (v) => v.facts.image },
  { label: "Project", value: (v) => v.facts.project },
  { label: "Owner", value: (v) => v.facts.owner },
  { label: "Manager", value: (v) => v.facts.manager },
];

const path = (what) => `/vm/${encodeURIComponent(what)}`;

const EVENTS = [
  { label: "When", value: (e) => e.event.unix_ns, cell: (e) => exact(e.event.unix_ns), isTime: true },
  { label: "Before", value: (e) => e.event.before },
  { label: "Found", value: (e) => e.event.behaviour, cell: (e) => found(e.event) },
  { label: "Found by", value: (e) => (e.event.found_by ?? []).join(", "), hint: "host: beside its own baseline; fleet: beside its job" },
  { label: "Lasted before", value: (e) => e.event.lasted_ns, cell: (e) => (e.event.lasted_ns ? duration(e.event.lasted_ns) : ""), numeric: true },
  { label: "Why", value: (e) => e.event.reason },
];

/** What happened to it last, how much, when, because of whom, and what to do. */
function story({ incidents: [last], detail }, vm) {
  if (!last) return h("p", { class: "verdict" }, "It is in no incident that is kept: nothing is known to have slowed it down.");
  const i = detail?.incident ?? last;
  const victim = i.victims.find((each) => each.vm === vm);
  const now = i.open ? detail?.reports.at(-1)?.victims.find((each) => each.vm === vm) : null;
  const suffers = Boolean(now) || (i.open && !detail && Boolean(victim));
  const ratio = (now ?? victim)?.slow_down;
  const what = victim ? (suffers ? "It suffers now" : "It suffered") : i.open ? "It is suspected of making others suffer" : "It was suspected of making others suffer";
  const advice = i.recommendations?.find((each) => each.action !== "nothing");
  return h("div", { class: "story" },
    h("p", { class: "verdict" }, state(suffers || (i.open && !victim) ? "open" : "over", what), isKnown(ratio?.ratio) && [", ", slowDown(ratio), suffers ? "" : " at worst"], ", ",
      i.open ? ["since ", time(i.first_unix_ns)] : [exact(i.first_unix_ns), " for ", duration(i.last_unix_ns - i.first_unix_ns), ", ended ", time(i.last_unix_ns)],
      " on ", hostLink(i.host), victim && [", because of ", suspect(i.suspect)], ". ", link(`/incident/${i.id}`, `Incident #${i.id}`), "."),
    advice && h("p", { class: "remedy" }, h("strong", null, i.open ? "What to do: " : "It could have helped: "), inOneLine(advice), ". ", link(`/incident/${i.id}`, "How")));
}

/** The metrics, a chart each; lines of what it is compared with are dashed. */
function drawn({ series, beside, metrics, other, incidents }, name) {
  if (!series?.vms.length) return h("p", { class: "empty" }, "No windows of it in this time. They are there once they are in the lake, a minute after they were measured.");
  const [mine] = series.vms;
  const [theirs] = beside?.vms ?? [];
  const most = Math.ceil(BRIDGED_NS / series.step);
  const spans = incidents.map((i) => [i.first_unix_ns / 1e9, i.last_unix_ns / 1e9]);
  const label = theirs && (other ? theirs.name || theirs.vm : "the day before");
  return charts(metrics.map((each) => {
    const { label: words, unit } = metric(each);
    const values = mine.values[each] ?? [];
    const why = mine.why[each];
    if (!values.some(isKnown) && !theirs) return `${words}${why && why !== "unknown" ? ` (${why.replaceAll("_", " ")})` : ""}`;
    return timeChart(words, `Steps of ${duration(series.step)}${theirs ? `; dashed: ${label}` : ""}. Shaded: incidents.`, series.seconds, [
      { label: name, ...withInterval(mine.values, each) },
      ...(theirs ? [{ label, values: aligned(theirs.values[each] ?? [], values.length), dash: true, isBeside: true, colour: 1 }] : []),
    ], unit, spans, most);
  }));
}

/** Values on a grid of as many steps. */
const aligned = (values, length) => Array.from({ length }, (_, k) => values[k] ?? null);

function compareForm(route) {
  const { compare = "" } = route.parameters;
  const kept = Object.entries(route.parameters).filter(([name]) => name !== "compare").map(([name, value]) => h("input", { type: "hidden", name, value }));
  return form(path(route.what), "Compare", "Compare", kept, field("Beside", { name: "compare", value: compare, placeholder: "yesterday, or a VM", list: "compare-list" }),
    h("datalist", { id: "compare-list" }, h("option", { value: "yesterday" })));
}

export function draw(data, route) {
  const { history, series, incidents, shown } = data;
  const vm = history?.vm ?? series?.vms[0]?.vm ?? route.what;
  const name = history?.name || data.known?.versions[0]?.facts.name || series?.vms[0]?.name || vm;
  const events = history?.events ?? [];
  const { facts: is, host: at } = data.known?.vm ?? data.known?.versions[0] ?? {};
  const part = incidents.flatMap((i) => [...i.victims, ...i.suspects]).find((each) => each.vm === vm);
  const job = series?.vms[0]?.job || is?.job || part?.job || events[0]?.event.job;
  const hosts = [...new Set([...(series?.vms[0]?.hosts ?? []), ...(history?.windows ?? []).map((each) => each.host), ...events.map((each) => each.host), ...(at ? [at] : [])])];
  const recommended = data.detail?.incident.open ? data.detail.incident.recommendations : [];
  return [
    story(data, vm),
    facts([
      ["UUID", vm],
      ["Job", job && jobLink(job)],
      ["Project", (is?.project || part?.project) && link("/vms", is?.project || part.project, { project: is?.project || part.project })],
      ["Size", is && [isKnown(is.vcpus) && counted(is.vcpus, "vCPU"), is.memory_bytes && bytes(is.memory_bytes), isKnown(is.cpu_quota_cores) && `quota ${number(is.cpu_quota_cores)} cores`].filter(Boolean).join(", ")],
      ["Flavor, image", is && [is.flavor, is.image].filter(Boolean).join(", ")],
      ["Manager", is?.manager],
      ["Host", hosts.length > 0 && h("span", null, hosts.map((host, k) => [k > 0 && ", ", hostLink(host)]))],
      ["Last found", events.length > 0 && h("span", null, found(events[0].event), ", ", time(events[0].event.unix_ns))],
      ["Keep it quiet", link("/silences", "silence", { vm })],
    ].filter(([, what]) => what)),
    spanForm(path(route.what), route.parameters, shown),
    h("div", { class: "choices" }, metricBoxes(data.metrics), compareForm(route)),
    drawn(data, name),
    recommended.length > 0 && actions(recommended),
    data.known?.versions.length > 0 && section("What it was", table("vm-versions", "Its size, place and owner, the last version first", VERSIONS, data.known.versions, "")),
    section("What its host found", table("vm-events", `Changes of its behaviour ${inLastDay(shown)}, the last first`, EVENTS, events, `Nothing was found ${inLastDay(shown)}.`)),
    section("Incidents", table("vm-incidents", `With it as a victim or a suspect, ${counted(incidents.length, "incident")}, the last that began first`, INCIDENT_COLUMNS, incidents, "It was in no incident that is kept.")),
  ];
}
