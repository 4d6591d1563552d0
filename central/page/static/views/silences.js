// Silences: what is kept quiet, until when, why, by whom; a new one; ending one.
import { everyRow } from "../api.js";
import { h, section } from "../dom.js";
import { exact, time } from "../format.js";
import { endSilence, silenceForm } from "../people.js";
import { table } from "../table.js";
import { hostLink, jobLink, link, state, vmLink } from "../words.js";

export const title = () => "Silences";
export const load = (ask, { parameters }) => ask("v1/silences", { page_size: 200, page_token: parameters.page, project: parameters.project });

const about = (s) => [s.host && ["host ", hostLink(s.host)], s.vm && ["VM ", vmLink(s)], s.job && ["job ", jobLink(s.job)], s.project && `project ${s.project}`].filter(Boolean);
const words = (s) => [s.host && `host ${s.host}`, s.vm && `VM ${s.name || s.vm}`, s.job && `job ${s.job}`, s.project && `project ${s.project}`].filter(Boolean).join(", ");
const isAhead = (s) => !s.ended_by && s.start_unix_ns / 1e6 > Date.now();
const stateOf = (s) => (s.in_force ? "in force" : s.ended_by ? `ended by ${s.ended_by}` : isAhead(s) ? "later" : "over");

const COLUMNS = [
  { label: "Silence", value: (s) => s.id, cell: (s) => `#${s.id}` },
  { label: "State", value: stateOf, cell: (s) => state(s.in_force ? "quieted" : "over", stateOf(s)) },
  { label: "Of", value: words, cell: (s) => h("span", null, about(s).map((each, k) => [k > 0 && ", ", each])) },
  { label: "Reason", value: (s) => s.reason },
  { label: "By", value: (s) => s.by },
  { label: "From", value: (s) => s.start_unix_ns, cell: (s) => time(s.start_unix_ns), numeric: true, isTime: true },
  { label: "Until", value: (s) => s.end_unix_ns, cell: (s) => exact(s.end_unix_ns), numeric: true, isTime: true },
  { label: "End it", isControl: true, value: () => "", cell: (s) => ((s.in_force || isAhead(s)) ? endSilence(s.id) : "") },
];

export function draw(page, { parameters }) {
  return [
    table("silences", "The last one made first", COLUMNS, page.silences, "Nothing is silenced.", { all: () => everyRow("v1/silences", {}, "silences") }),
    h("p", null, parameters.page && [link("/silences", "Newest"), " "], page.next_page_token && link("/silences", "Older", { page: page.next_page_token })),
    section("New silence", h("p", { class: "quiet" }, "An incident that all of it matches reaches no webhook and raises no alert; here and in the API it stays, marked."),
      silenceForm({ host: parameters.host, vm: parameters.vm, job: parameters.job })),
  ];
}
