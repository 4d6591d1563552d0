// Where would one more VM suffer least? D-Factor's ranking of the hosts as they are now.
import { field, form, h } from "../dom.js";
import { count, counted, number, plain, time } from "../format.js";
import { table } from "../table.js";
import { hostLink } from "../words.js";

export const title = () => "Placement what-if";
export const isLive = false; // it is asked again when somebody asks

const asks = ({ parameters }) => Object.keys(parameters).length > 0; // central says what is missing

const question = ({ parameters }) =>
  form("/placement", "VM to place", "Rank hosts",
    field("VM of the job", { name: "job", value: parameters.job ?? "" }),
    field("or its loading", { name: "loading", value: parameters.loading ?? "", placeholder: "cpu=0.5,disk_wait=0.1", size: 26 }),
    field("Hosts", { name: "top", value: parameters.top ?? "20", inputmode: "numeric", size: 5 }));
export { question as form };
/** Fields of the form, by the parameter that central has for each. */
export const LABELS = { job: "VM of the job", loading: "or its loading", top: "Hosts" };

export const load = async (ask, route) => (asks(route) ? ask("v1/placement", { top: 20, ...route.parameters }) : null);

export function draw(found, route) {
  const about = h("p", { class: "quiet" }, "Hosts are ranked by how much a new VM's time would be stretched beside the VMs that run there now (D-Factor).");
  if (!found) return [about, question(route)];
  const columns = [
    { label: "Host", value: (x) => x.host, cell: (x) => hostLink(x.host) },
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
    h("p", null, `Its loading: ${loading}. Of windows since `, time(found.since_unix_ns), "."),
    table("placement", `Where it would suffer least first: ${count(found.hosts.length)} of ${counted(found.hosts_in_all, "host")}`, columns, found.hosts, "No host is connected and none ran a VM lately."),
    found.unmeasured.length > 0 && h("details", { id: "placement-unmeasured" }, h("summary", null, `Resources left out: ${found.unmeasured.length}`),
      h("ul", null, found.unmeasured.map((each) => h("li", null, `${each.resource}: ${each.why}`)))),
  ];
}
