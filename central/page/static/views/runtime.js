// How long would a job run there? Pitot's prediction with bounds that hold so often.
import { facts, field, form, h, section } from "../dom.js";
import { number, percent } from "../format.js";
import { table } from "../table.js";

export const title = () => "Runtime what-if";
export const isLive = false;

const asks = ({ parameters }) => Object.keys(parameters).length > 0; // central says what is missing

const question = ({ parameters }) =>
  form("/runtime", "Job to run", "Predict",
    field("Job", { name: "job", value: parameters.job ?? "" }),
    field("on the host, as it is now", { name: "host", value: parameters.host ?? "" }),
    field("or on the platform", { name: "platform", value: parameters.platform ?? "" }),
    field("beside jobs", { name: "beside", value: parameters.beside ?? "", placeholder: "one, two", size: 24 }));
export { question as form };
export const LABELS = { job: "Job", host: "on the host, as it is now", platform: "or on the platform", beside: "beside jobs" };

export const load = async (ask, route) => {
  if (!asks(route)) return null;
  const { job, host, platform, beside = "" } = route.parameters;
  return ask("v1/runtime", { job, host, platform, beside: beside.split(",").map((each) => each.trim()) });
};

const BOUNDS = [
  { label: "Longer in at most", value: (b) => b.epsilon, cell: (b) => percent(b.epsilon, 0) },
  { label: "Bound, µs", value: (b) => b.bound_us, cell: (b) => number(b.bound_us, 1), numeric: true },
];

export function draw(found, route) {
  const about = h("p", { class: "quiet" }, "By the model that central's ", h("code", null, "runtime.model"), " names; times are in the unit of the runtimes that it was fitted to.");
  if (!found) return [about, question(route)];
  return [
    about,
    question(route),
    section("Prediction", facts([
      ["Predicted, µs", number(found.predicted_us, 1)],
      ["Platform", found.platform],
      ["Beside", found.beside.join(", ") || "nothing: alone"],
      ["Left out, as the model does not know them", found.not_known.join(", ")],
    ]), table("runtime-bounds", "How long it takes at most", BOUNDS, found.bounds, "The model has no bounds.")),
  ];
}
