// Jobs by name: their CPI on each platform, and their coefficients.
import { everyRow } from "../api.js";
import { field, form, h } from "../dom.js";
import { count, interval, number } from "../format.js";
import { table } from "../table.js";
import { jobLink, link } from "../words.js";

export const title = () => "Jobs";

export async function load(ask, { parameters }) {
  const [statistics, coefficients] = await Promise.all([
    ask("v1/job-statistics", { page_size: 1000, page_token: parameters.page, project: parameters.project }),
    allCoefficients(ask),
  ]);
  return { statistics, coefficients };
}

/** Every page of them: they come by value, and what is shown is by name. */
async function allCoefficients(ask) {
  const found = [];
  let token = "";
  do {
    const page = await ask("v1/coefficients", { page_size: 1000, page_token: token });
    found.push(...page.coefficients);
    token = page.next_page_token;
  } while (token);
  return found;
}

export function draw({ statistics, coefficients }, { parameters }) {
  const known = new Map(coefficients.map((each) => [each.job, each]));
  const columns = [
    { label: "Job", value: (s) => s.job, cell: (s) => jobLink(s.job) },
    { label: "Platform", value: (s) => s.platform },
    { label: "Mean CPI", value: (s) => s.mean_cpi, cell: (s) => number(s.mean_cpi), numeric: true },
    { label: "Std of CPI", value: (s) => s.std_cpi, cell: (s) => number(s.std_cpi), numeric: true },
    { label: "Samples", value: (s) => s.samples, cell: (s) => count(s.samples), numeric: true },
    { label: "Coefficient, 95 %", value: (s) => known.get(s.job)?.value, numeric: true, hint: "mnCPI per core of its CPU usage",
      cell: (s) => interval(known.get(s.job)?.value, known.get(s.job)?.standard_error) },
  ];
  const open = (event) => {
    event.preventDefault();
    event.stopPropagation();
    const job = new FormData(event.currentTarget).get("job").trim();
    if (job) location.hash = `#/job/${encodeURIComponent(job)}`;
  };
  const go = form("/jobs", "Open a job", "Open", field("Job by name", { name: "job", required: true }));
  go.addEventListener("submit", open, true);
  return [
    go,
    table("jobs", statistics.version ? `Jobs of version ${statistics.version}, by name` : "Jobs", columns, statistics.statistics,
      "No version of statistics has been built yet: the first comes when the lake has slots to build it from.",
      { all: () => everyRow("v1/job-statistics", { project: parameters.project }, "statistics") }),
    statistics.next_page_token && h("p", null, link("/jobs", "Next 1,000 rows", { page: statistics.next_page_token })),
  ];
}
