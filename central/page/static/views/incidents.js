// When VMs of a host suffered, the last that began first.
import { everyRow } from "../api.js";
import { field, form, h } from "../dom.js";
import { table } from "../table.js";
import { INCIDENT_COLUMNS, link } from "../words.js";

const FILTERS = [["host", "Host"], ["suspect_job", "Suspected job"], ["victim_job", "Victim's job"], ["vm", "VM (UUID or name)"], ["project", "Project"]];

export const title = () => "Incidents";
const wanted = (parameters) => Object.fromEntries(FILTERS.map(([name]) => [name, parameters[name] ?? ""]));
export const load = (ask, { parameters }) => ask("v1/incidents", { ...wanted(parameters), page_size: 200, page_token: parameters.page });

const filters = (route) =>
  form("/incidents", "Which incidents", "Show", FILTERS.map(([name, label]) => field(label, { name, value: route.parameters[name] ?? "" })));
export { filters as form };
export const LABELS = Object.fromEntries(FILTERS);

export function draw(page, route) {
  const filtered = FILTERS.some(([name]) => route.parameters[name]);
  return [
    filters(route),
    table("incidents", "The last that began first", INCIDENT_COLUMNS, page.incidents, filtered ? "No incident is like that." : "No host has reported contention yet.",
      { all: () => everyRow("v1/incidents", wanted(route.parameters), "incidents") }),
    h("p", null,
      route.parameters.page && [link("/incidents", "Newest", wanted(route.parameters)), " "],
      page.next_page_token && link("/incidents", "Older", { ...wanted(route.parameters), page: page.next_page_token })),
  ];
}
