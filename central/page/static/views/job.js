// One job: its CPI by platform, its coefficient now and over versions, where it runs.
import { bandChart, histogram } from "../charts.js";
import { facts, h, section } from "../dom.js";
import { count, counted, interval, number, plain, time } from "../format.js";
import { table } from "../table.js";
import { hostLink, link } from "../words.js";

export const title = ({ what }) => `Job ${what}`;
export const load = (ask, { what, parameters }) => ask("v1/job", { job: what, project: parameters.project });

const STATISTICS = [
  { label: "Platform", value: (s) => s.platform },
  { label: "Mean CPI", value: (s) => s.mean_cpi, cell: (s) => number(s.mean_cpi), numeric: true },
  { label: "Std of CPI", value: (s) => s.std_cpi, cell: (s) => number(s.std_cpi), numeric: true },
  { label: "Samples", value: (s) => s.samples, cell: (s) => count(s.samples), numeric: true },
];
const HISTORY = [
  { label: "Version", value: (x) => x.version, numeric: true },
  { label: "Built", value: (x) => x.created_unix_ns, cell: (x) => time(x.created_unix_ns), numeric: true, isTime: true },
  { label: "Coefficient, 95 %", value: (x) => x.value, cell: (x) => interval(x.value, x.standard_error), numeric: true },
  { label: "Samples", value: (x) => x.samples, cell: (x) => count(x.samples), numeric: true },
];
const HOSTS = [
  { label: "Host", value: (x) => x.host, cell: (x) => hostLink(x.host) },
  { label: "Platform", value: (x) => x.platform },
  { label: "VMs", value: (x) => x.vms, cell: (x) => count(x.vms), numeric: true },
  { label: "Mean CPI", value: (x) => x.mean_cpi, cell: (x) => number(x.mean_cpi), numeric: true },
  { label: "CPU, cores", value: (x) => x.cpu_usage_cores, cell: (x) => number(x.cpu_usage_cores), numeric: true },
];

function distributions(job) {
  const known = job.distributions.filter((d) => d.vms.some((n) => n > 0));
  if (!known.length) return h("p", { class: "empty" }, job.vms ? "No CPI is known of its VMs that run now." : "No VM of it runs now.");
  const { low_cpi: low, high_cpi: high } = known[0];
  const bins = known[0].vms.length;
  const edges = Array.from({ length: bins + 1 }, (_, k) => low + ((high - low) * k) / bins);
  const total = known.reduce((sum, d) => sum + d.vms.reduce((a, b) => a + b, 0), 0);
  return histogram("CPI of its VMs now, by platform", `${counted(total, "VM")} between ${plain(low)} and ${plain(high)} cycles per instruction; each by its mean over the last minutes.`,
    edges, known.map((d) => ({ label: d.platform, counts: d.vms })), "cycles per instruction", "VMs");
}

export function draw(job) {
  const low = job.history.map((x) => (x.standard_error === null ? null : x.value - 1.96 * x.standard_error));
  const high = job.history.map((x) => (x.standard_error === null ? null : x.value + 1.96 * x.standard_error));
  const last = job.history.at(-1);
  return [
    facts([
      ["Coefficient, 95 %", job.coefficient && interval(job.coefficient.value, job.coefficient.standard_error)],
      ["Fitted by", job.coefficient && (job.coefficient.method || "panda")],
      ["Slots behind it", job.coefficient && count(job.coefficient.samples)],
      ["VMs that run now", count(job.vms)],
      ["On hosts", count(job.hosts_in_all)],
      ["Suspected first", job.recurrence ? link("/incidents", `in ${counted(job.recurrence.incidents, "incident")} on ${counted(job.recurrence.hosts, "host")}`, { suspect_job: job.job }) : "never"],
      ["Suffered", link("/incidents", "incidents", { victim_job: job.job })],
      ["For another VM", link("/placement", "rank hosts", { job: job.job })],
    ]),
    distributions(job),
    section("CPI statistics", table("job-statistics", "Of the version in force, by platform", STATISTICS, job.statistics, "The version in force has no statistics of it yet.")),
    section("Coefficient over versions",
      job.history.length ? [
        bandChart("mnCPI per core of its CPU usage", `Versions ${job.history[0].version} to ${last.version}; the last one is ${plain(last.value, 3)}. Shaded: 95 % interval.`,
          job.history.map((x) => x.version), job.history.map((x) => x.value), low, high, "version", "mnCPI per core"),
        h("details", { id: "job-history-figures" }, h("summary", null, "Figures"), table("job-history", "Coefficient by version, the oldest first", HISTORY, job.history, "")),
      ] : h("p", { class: "empty" }, "No version that is kept has a coefficient of it.")),
    section("Hosts", table("job-hosts", `Where its VMs run, the most first${job.hosts_in_all > job.hosts.length ? `: ${job.hosts.length} of ${count(job.hosts_in_all)}` : ""}`, HOSTS, job.hosts, "No VM of it runs now.")),
  ];
}
