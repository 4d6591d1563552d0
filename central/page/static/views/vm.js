// One VM: what it did over time, what its host found of it, the incidents that it was in.
import { timeChart } from "../charts.js";
import { facts, h, section } from "../dom.js";
import { count, duration, nanoseconds, time } from "../format.js";
import { span, spanForm } from "../span.js";
import { table } from "../table.js";
import { found, hostLink, INCIDENT_COLUMNS, jobLink } from "../words.js";

const POINTS = 120;
const MOST_WINDOWS = 3000;
const GAP_NS = 150e9;

export const title = ({ what }, vm) => `VM ${vm?.name || what}`;

export function load(ask, { what, parameters }) {
  const { since, until } = span(parameters, POINTS);
  return ask(`v1/vms/${encodeURIComponent(what)}/history`, { since_unix_ns: nanoseconds(since), until_unix_ns: nanoseconds(until), max_windows: MOST_WINDOWS });
}

const times = ({ what, parameters }) => spanForm(`/vm/${encodeURIComponent(what)}`, parameters);
export { times as form };

const EVENTS = [
  { label: "When", value: (e) => e.event.unix_ns, cell: (e) => time(e.event.unix_ns) },
  { label: "Before", value: (e) => e.event.before },
  { label: "Found", value: (e) => e.event.behaviour, cell: (e) => found(e.event) },
  { label: "Found by", value: (e) => (e.event.found_by ?? []).join(", "), hint: "host: beside its own baseline; fleet: beside its job" },
  { label: "Lasted before", value: (e) => e.event.lasted_ns, cell: (e) => (e.event.lasted_ns ? duration(e.event.lasted_ns) : ""), numeric: true },
  { label: "Why", value: (e) => e.event.reason },
];

/** Windows with an empty one wherever there was none for long: a line does not go over what nobody measured. */
function withGaps(windows) {
  return windows.flatMap((window, k) => {
    const end = k ? windows[k - 1].start_unix_ns + windows[k - 1].duration_ns : window.start_unix_ns;
    return window.start_unix_ns - end > GAP_NS ? [{ start_unix_ns: end, cpi: null, cpu_usage_cores: null }, window] : [window];
  });
}

export function draw(vm, route) {
  const windows = withGaps(vm.windows);
  const seconds = windows.map((each) => each.start_unix_ns / 1e9);
  const hosts = [...new Set([...vm.windows, ...vm.events].map((each) => each.host))];
  const mine = vm.incidents.flatMap((i) => [...i.victims, ...i.suspects]).find((each) => each.vm === vm.vm);
  // A line for each host: one that claims another's VM does not change that one's.
  const senders = [...new Set(vm.windows.map((each) => each.host))];
  const lines = (label, of) => senders.map((host) => ({
    label: senders.length > 1 ? `${label} on ${host}` : label,
    points: senders.length > 1,
    values: windows.map((each) => (each.host && each.host !== host ? undefined : of(each))), // undefined: no gap
  }));
  const job = mine?.job || vm.events[0]?.event.job;
  const left = vm.windows_left_out ? `, the last ${count(vm.windows.length)} windows` : "";
  return [
    times(route),
    facts([
      ["Last found", vm.events.length > 0 && h("span", null, found(vm.events[0].event), ", ", time(vm.events[0].event.unix_ns))],
      ["Name", vm.name],
      ["UUID", vm.vm],
      ["Job", job && jobLink(job)],
      ["Host", hosts.length > 0 && h("span", null, hosts.map((host, k) => [k > 0 && ", ", hostLink(host, route.parameters)]))],
    ].filter(([, what]) => what)),
    vm.windows.length ? [
      timeChart("CPI", `Windows of this VM${left}.`, seconds, lines("CPI", (each) => each.cpi), "cycles per instruction"),
      timeChart("CPU usage", `Windows of this VM${left}.`, seconds, lines("CPU usage", (each) => each.cpu_usage_cores), "cores"),
    ] : h("p", { class: "empty" }, "No windows of it in this time. They are there once they are in the lake, a minute after they were measured."),
    section("What its host found", table("vm-events", "Changes of its behaviour, the last first", EVENTS, vm.events, "Nothing was found in this time.")),
    section("Incidents", table("vm-incidents", "With it as a victim or a suspect, the last that began first", INCIDENT_COLUMNS, vm.incidents, "It was in no incident in this time.")),
  ];
}
