// The VMs that run: filtered, sorted and cut into pages by central.
import { everyRow } from "../api.js";
import { field, form, h } from "../dom.js";
import { count, number, slowDown, time } from "../format.js";
import { change } from "../span.js";
import { table } from "../table.js";
import { hostLink, incidentLink, jobLink, link, state, vmLink } from "../words.js";

const FILTERS = [["text", "Name, UUID, job, host or project has"], ["project", "Project"], ["job", "Job"], ["host", "Host"]];
const KINDS = [["", "all"], ["victim", "suffer now"], ["inflicting", "make others suffer"], ["steady", "neither"]];
const SIZE = 100;

export const title = () => "VMs";
export const LABELS = Object.fromEntries(FILTERS);

const wanted = ({ text, project, job, host, behaviour, order, descending }) => ({ text, project, job, host, behaviour, order, descending });
export const load = (asking, { parameters }) => asking("v1/vms", { ...wanted(parameters), page_size: SIZE, page_token: parameters.page });

const filters = ({ parameters }) => form("/vms", "Which VMs", "Show",
  FILTERS.map(([name, label]) => field(label, { name, value: parameters[name] ?? "" })),
  field("Those that", { name: "behaviour", value: parameters.behaviour ?? "" }, KINDS));
export { filters as form };

const behaviour = (vm) => (vm.behaviour === "victim" ? state("open", "suffers") : vm.behaviour === "inflicting" ? state("late", "suspected") : "");

const COLUMNS = [
  { label: "VM", order: "name", value: (vm) => vm.name || vm.vm, cell: (vm) => vmLink(vm) },
  { label: "Now", order: "behaviour", numeric: false, value: (vm) => vm.behaviour, cell: behaviour },
  { label: "Slow-down", order: "slow_down", value: (vm) => vm.slow_down?.ratio, cell: (vm) => (vm.behaviour === "victim" ? slowDown(vm.slow_down) : ""), numeric: true, hint: "in the last report of its host" },
  { label: "Incident", value: (vm) => vm.incident || null, cell: (vm) => (vm.incident ? h("span", null, incidentLink(vm.incident), ", ", time(vm.since_unix_ns)) : "") },
  { label: "Job", order: "job", value: (vm) => vm.job, cell: (vm) => jobLink(vm.job) },
  { label: "Project", order: "project", value: (vm) => vm.project, cell: (vm) => (vm.project ? link("/vms", vm.project, { project: vm.project }) : "") },
  { label: "Host", order: "host", value: (vm) => vm.host, cell: (vm) => hostLink(vm.host) },
  { label: "CPU, cores", order: "cpu", value: (vm) => vm.cpu_usage_cores, cell: (vm) => number(vm.cpu_usage_cores), numeric: true, hint: "mean of the last minutes" },
  { label: "CPI", order: "cpi", value: (vm) => vm.cpi, cell: (vm) => number(vm.cpi), numeric: true, hint: "mean of the last minutes" },
  { label: "Platform", order: "platform", value: (vm) => vm.platform },
  { label: "UUID", value: (vm) => vm.vm, cell: (vm) => h("span", { class: "quiet" }, vm.vm) },
  { label: "Last window", order: "last", value: (vm) => vm.last_unix_ns, cell: (vm) => time(vm.last_unix_ns), numeric: true, isTime: true },
];

export function draw(page, route) {
  const { parameters } = route;
  const isFiltered = [...FILTERS.map(([name]) => name), "behaviour"].some((name) => parameters[name]);
  const order = parameters.order || "slow_down";
  const remote = {
    order,
    descending: parameters.order ? parameters.descending === "true" : true,
    sort: (by, descending) => change({ order: by, descending: descending ? "true" : "", page: "" }),
    all: () => everyRow("v1/vms", wanted(parameters), "vms"),
  };
  return [
    filters(route),
    table("vms", `${count(page.vms_in_all)} ${page.vms_in_all === 1 ? "VM" : "VMs"}${isFiltered ? " that match" : ""}`, COLUMNS, page.vms,
      isFiltered ? "No VM that runs is like that. The search box above finds those that are gone, too." : "No VM runs, or central has not read the first windows yet.", remote),
    h("p", null,
      parameters.page && [link("/vms", "First page", wanted(parameters)), " "],
      page.next_page_token && link("/vms", `Next ${SIZE}`, { ...wanted(parameters), page: page.next_page_token })),
  ];
}
