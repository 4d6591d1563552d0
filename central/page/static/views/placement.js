// Where would one more VM suffer least? D-Factor's ranking of the hosts as they are now.
import { field, form, h } from "../dom.js";
import { bytes, count, counted, number, plain, time } from "../format.js";
import { table } from "../table.js";
import { hostLink, state } from "../words.js";

const GIB = 2 ** 30;

export const title = () => "Placement what-if";
export const isLive = false; // it is asked again when somebody asks

const asks = ({ parameters }) => Object.keys(parameters).length > 0; // central says what is missing

const question = ({ parameters }) =>
  form("/placement", "VM to place", "Rank hosts",
    field("VM of the job", { name: "job", value: parameters.job ?? "" }),
    field("or its loading", { name: "loading", value: parameters.loading ?? "", placeholder: "cpu=0.5,disk_wait=0.1", size: 26 }),
    field("vCPUs", { name: "vcpus", value: parameters.vcpus ?? "", inputmode: "decimal", size: 5, placeholder: "as its job's" }),
    field("Memory, GiB", { name: "memory_gib", value: parameters.memory_gib ?? "", inputmode: "decimal", size: 5, placeholder: "as its job's" }),
    field("Hosts", { name: "top", value: parameters.top ?? "20", inputmode: "numeric", size: 5 }));
export { question as form };
/** Fields of the form, by the parameter that central has for each. */
export const LABELS = { job: "VM of the job", loading: "or its loading", vcpus: "vCPUs", memory_bytes: "Memory, GiB", top: "Hosts" };

/** Memory as central takes it; what is no number stays, so that central says so. */
const inBytes = (gib) => (gib && Number.isFinite(Number(gib)) ? Math.round(Number(gib) * GIB) : gib);

export async function load(ask, route) {
  if (!asks(route)) return null;
  const { memory_gib: gib, ...parameters } = route.parameters;
  return ask("v1/placement", { top: 20, ...parameters, memory_bytes: inBytes(gib) });
}

const roomWords = (x) => (x.full ? `full: ${x.full}` : x.room_unknown ? "cannot tell" : "yes");
const room = (x) => h("span", { title: x.room_unknown || null }, state(x.full ? "failed" : x.room_unknown ? "late" : "ok", roomWords(x)));

/** Why nobody can tell whether hosts have room, with how many each reason is of. */
function doubts(hosts) {
  const counts = new Map();
  for (const { room_unknown: why } of hosts) if (why) counts.set(why, (counts.get(why) ?? 0) + 1);
  return counts.size > 0 && h("details", { id: "placement-doubts" }, h("summary", null, `Why nobody can tell whether there is room: ${counted(counts.size, "reason")}`),
    h("ul", null, [...counts].map(([why, hosts]) => h("li", null, `${counted(hosts, "host")}: ${why}`))));
}

export function draw(found, route) {
  const about = h("p", { class: "quiet" }, "Hosts are ranked by how much a new VM's time would be stretched beside the VMs that run there now (D-Factor).");
  if (!found) return [about, question(route)];
  const columns = [
    { label: "Host", value: (x) => x.host, cell: (x) => hostLink(x.host) },
    { label: "Room", value: roomWords, cell: room, hint: "of vCPUs and memory, by facts and central's overcommit" },
    { label: "Stretched by", value: (x) => x.added, cell: (x) => `${plain(x.added * 100, 1)} %`, numeric: true, hint: "over what it would take alone" },
    { label: "VMs", value: (x) => x.vms, cell: (x) => count(x.vms), numeric: true },
    ...found.resources.flatMap((resource, k) => [
      { label: `by ${resource}`, value: (x) => x.by_resource[k], cell: (x) => `${plain(x.by_resource[k] * 100, 1)} %`, numeric: true },
      { label: `${resource} in use`, value: (x) => x.total[k], cell: (x) => number(x.total[k]), numeric: true, hint: "sum of the loadings of the VMs there" },
    ]),
  ];
  const loading = found.resources.map((resource, k) => `${resource} ${found.loading[k] === null ? "not known" : plain(found.loading[k])}`).join(", ");
  return [
    about,
    question(route),
    h("p", null, `Its loading: ${loading}. Its size: ${found.vcpus ? counted(found.vcpus, "vCPU") : "vCPUs not known"}, ${found.memory_bytes ? bytes(found.memory_bytes) : "memory not known"}. Of windows since `, time(found.since_unix_ns), "."),
    found.hosts.length > 0 && found.hosts[0].full && h("p", { class: "problem" }, "No host has room for it."), // full ones come last
    table("placement", `Where it would suffer least first, full hosts last: ${count(found.hosts.length)} of ${counted(found.hosts_in_all, "host")}`, columns, found.hosts, "No host is connected and none ran a VM lately."),
    doubts(found.hosts),
    found.unmeasured.length > 0 && h("details", { id: "placement-unmeasured" }, h("summary", null, `Resources left out: ${found.unmeasured.length}`),
      h("ul", null, found.unmeasured.map((each) => h("li", null, `${each.resource}: ${each.why}`)))),
  ];
}
