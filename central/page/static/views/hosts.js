// Every host that ever connected.
import { everyRow } from "../api.js";
import { h } from "../dom.js";
import { count, time } from "../format.js";
import { table } from "../table.js";
import { hostLink, hostStates, hostWords, link } from "../words.js";

export const title = () => "Hosts";

export async function load(ask, { parameters }) {
  const [page, overview] = await Promise.all([
    ask("v1/hosts", { page_size: 1000, page_token: parameters.page, project: parameters.project }),
    ask("v1/overview", { top: 1000, project: parameters.project }),
  ]);
  return { page, contended: overview.contended };
}

export function draw({ page, contended }, { parameters }) {
  const slots = new Map(contended.map((each) => [each.host, each.reports]));
  const columns = [
    { label: "Host", value: (x) => x.host, cell: (x) => hostLink(x.host) },
    { label: "State", value: (x) => hostWords(x).join("; "), cell: hostStates, hint: "paced: central asks it to wait so long between batches" },
    { label: "Reports, 24 h", value: (x) => slots.get(x.host) ?? 0, cell: (x) => count(slots.get(x.host) ?? 0), numeric: true, hint: "slots in which VMs suffered, in the last 24 hours" },
    { label: "Jobs", value: (x) => x.jobs.length, cell: (x) => count(x.jobs.length), numeric: true },
    { label: "Platform", value: (x) => x.platform },
    { label: "Agent", value: (x) => x.agent_version },
    { label: "Coefficients", value: (x) => x.coefficient_version, cell: (x) => (x.coefficient_version ? `version ${x.coefficient_version}` : "none"), numeric: true },
    { label: "Spooled", value: (x) => x.spooled_batches, cell: (x) => count(x.spooled_batches), numeric: true, hint: "batches that wait on the host" },
    { label: "Last seen", value: (x) => x.last_seen_unix_ns, cell: (x) => time(x.last_seen_unix_ns), numeric: true, isTime: true },
  ];
  return [
    table("hosts", "Hosts by name", columns, page.hosts, "No host has connected yet.", { all: () => everyRow("v1/hosts", { project: parameters.project }, "hosts") }),
    page.next_page_token && h("p", null, link("/hosts", "Next 1,000 hosts", { page: page.next_page_token })),
  ];
}
