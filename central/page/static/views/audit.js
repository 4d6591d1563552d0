// Who acknowledged, noted and silenced what.
import { everyRow } from "../api.js";
import { h } from "../dom.js";
import { exact } from "../format.js";
import { table } from "../table.js";
import { incidentLink, link } from "../words.js";

export const title = () => "Audit";
export const load = (ask, { parameters }) => ask("v1/audit", { page_size: 200, page_token: parameters.page, project: parameters.project });

const WORDS = { acknowledge: "acknowledged", note: "noted", silence: "silenced", end_silence: "ended a silence" };
const about = (e) => (e.incident ? `incident #${e.incident}` : `silence #${e.silence}`);

const COLUMNS = [
  { label: "When", value: (e) => e.unix_ns, cell: (e) => exact(e.unix_ns), isTime: true },
  { label: "Who", value: (e) => e.by, hint: "unverified: on central's own machine, where callers have no certificate" },
  { label: "Did", value: (e) => WORDS[e.action] ?? e.action },
  { label: "What", value: about, cell: (e) => (e.incident ? h("span", null, "incident ", incidentLink(e.incident)) : link("/silences", `silence #${e.silence}`)) },
  { label: "Words", value: (e) => e.text },
];

export function draw(page, { parameters }) {
  return [
    table("audit", "The last first", COLUMNS, page.entries, "Nobody has acknowledged, noted or silenced anything yet.", { all: () => everyRow("v1/audit", {}, "entries") }),
    h("p", null, parameters.page && [link("/audit", "Newest"), " "], page.next_page_token && link("/audit", "Older", { page: page.next_page_token })),
  ];
}
