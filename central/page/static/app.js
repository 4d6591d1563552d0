// Which view is shown, and that it stays fresh: asked again every few seconds while somebody looks.
import { ask, AskError } from "./api.js";
import { h, readable } from "./dom.js";
import { isDragging } from "./charts.js";
import { clock, keepAgo, zone } from "./format.js";
import "./search.js";

const SOON_MS = 1000;
const EVERY_MS = 5000;
const SLOW_MS = 4000; // with EVERY_MS less than 10 s from when central hangs

/** The first part of a link's path, and the module that shows it. */
const VIEWS = {
  "": () => import("./views/now.js"),
  vms: () => import("./views/vms.js"),
  hosts: () => import("./views/hosts.js"),
  host: () => import("./views/host.js"),
  vm: () => import("./views/vm.js"),
  jobs: () => import("./views/jobs.js"),
  job: () => import("./views/job.js"),
  incidents: () => import("./views/incidents.js"),
  incident: () => import("./views/incident.js"),
  upgrade: () => import("./views/upgrade.js"),
  placement: () => import("./views/placement.js"),
  runtime: () => import("./views/runtime.js"),
  health: () => import("./views/health.js"),
  silences: () => import("./views/silences.js"),
  audit: () => import("./views/audit.js"),
};
const PARENTS = { host: "hosts", vm: "vms", job: "jobs", incident: "incidents" };

const main = document.getElementById("main");
const stale = document.getElementById("stale");
const updated = document.getElementById("updated");

/** What is shown now. `at` is when central last answered. */
let shown = { route: null, view: null, text: "", refusal: "", at: 0, data: null };
let asking = new AbortController();
let timer = 0;

/** Links of the header keep the project that the page is narrowed to, and it is said. */
function markProject({ project = "" }) {
  for (const each of document.querySelectorAll("header a[href^='#']")) {
    each.hash = each.hash.split("?")[0] + (project ? `?${new URLSearchParams({ project })}` : "");
  }
  const place = document.getElementById("project");
  place.replaceChildren();
  if (project) place.append(h("span", null, "Project ", h("strong", null, project), ". "), h("a", { href: location.hash.replace(/([?&])project=[^&]*&?/, "$1").replace(/[?&]$/, "") }, "All projects"));
}

/** A link's view, the name behind it and its parameters: #/host/node1?hours=6. */
function parse(hash) {
  const [path, query = ""] = hash.replace(/^#?\/?/, "").split("?", 2);
  const slash = path.indexOf("/");
  const name = slash < 0 ? path : path.slice(0, slash);
  let what = slash < 0 ? "" : path.slice(slash + 1);
  try {
    what = decodeURIComponent(what);
  } catch {
    // It is no escape sequence, so it is meant as it stands.
  }
  return { name, what, parameters: Object.fromEntries(new URLSearchParams(query)) };
}

function markNavigation(name) {
  const current = `#/${PARENTS[name] ?? name}`;
  for (const each of document.querySelectorAll("nav a")) {
    if (each.hash.split("?")[0] === current) {
      each.setAttribute("aria-current", "page");
      const list = each.closest("ul"); // on a narrow screen it is one line that scrolls
      list.scrollLeft = each.offsetLeft - list.offsetLeft - (list.clientWidth - each.offsetWidth) / 2;
    } else each.removeAttribute("aria-current");
  }
}

/** Why there is no answer; what is wrong with a parameter is said by the label of its field. */
function problem(error, labels = {}) {
  const title = error.status === 404 ? "Not found" : error.status >= 400 && error.status < 500 ? "Not possible" : "No answer";
  const label = error.problem && labels[error.field];
  return h("div", { class: "problem", role: "alert" }, h("p", null, h("strong", null, `${title}. `), label ? `“${label}”: ${error.problem}` : error.message));
}

/** Put a view into the page; the element that has the focus, and what is folded open, stay so. */
function show(title, children) {
  const focused = document.activeElement?.id;
  const selection = document.activeElement?.selectionStart ?? null;
  const isOpen = new Set([...main.querySelectorAll("details[open][id]")].map((each) => each.id));
  const typed = new Map([...main.querySelectorAll("form[data-keep] [name]")]
    .filter((each) => each.value !== (each.defaultValue ?? each.querySelector("option[selected]")?.value)).map((each) => [each.id, each.value]));
  main.replaceChildren(h("h1", { id: "view-title", tabindex: "-1" }, title), ...children.flat(Infinity).filter(Boolean));
  for (const each of main.querySelectorAll("details[id]")) each.open ||= isOpen.has(each.id);
  for (const each of main.querySelectorAll("form[data-keep] [name]")) if (typed.has(each.id)) each.value = typed.get(each.id);
  const again = focused && main.querySelector(`#${CSS.escape(focused)}`);
  if (again) {
    again.focus({ preventScroll: true });
    if (selection !== null && again.setSelectionRange) again.setSelectionRange(selection, selection);
  }
}

function sayStale(what) {
  const since = shown.at ? ` What is shown is of ${clock(shown.at)}.` : "";
  const text = `Central ${what}.${since}`;
  if (stale.textContent !== text) stale.textContent = text; // or it would be read aloud each time
  document.body.classList.add("is-stale");
}

/** Wait for central, and say so while it takes long. */
async function whileAsking(answer, signal) {
  const slow = setTimeout(() => signal.aborted || sayStale(`has not answered for ${SLOW_MS / 1000} s`), SLOW_MS);
  try {
    return await answer;
  } finally {
    clearTimeout(slow);
  }
}

function sayFresh() {
  if (document.body.classList.contains("is-stale")) {
    document.body.classList.remove("is-stale");
    stale.textContent = "";
  }
  shown.at = Date.now();
  updated.textContent = `As of ${clock(shown.at)}.`;
}

async function refresh() {
  const { route, view } = shown;
  const { signal } = asking;
  try {
    const data = await whileAsking(view.load((path, parameters) => ask(path, parameters, signal), route), signal);
    if (signal.aborted) return;
    const text = JSON.stringify(data);
    if (text !== shown.text) {
      Object.assign(shown, { text, data, refusal: "" });
      document.title = readable(`${view.title(route, data)} · whitepanda`);
      show(view.title(route, data), view.draw(data, route));
    }
    sayFresh();
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof AskError)) throw error;
    const what = error.status === 0 ? "does not answer" : `answers ${error.status}: ${error.message}`;
    if (shown.text && error.status !== 404) sayStale(what);
    else {
      if (error.status === 0) sayStale(what);
      const isSaid = shown.refusal === error.message; // once, or it would be read aloud each time
      Object.assign(shown, { text: "", refusal: error.message });
      if (!isSaid) show(view.title(route), [view.form?.(route), problem(error, view.LABELS)]);
    }
  } finally {
    if (!signal.aborted) {
      main.removeAttribute("aria-busy");
      main.dataset.shows = location.hash;
      // A question that takes long is asked again when it is asked for again.
      if (view.isLive !== false || document.body.classList.contains("is-stale")) {
        clearTimeout(timer); // two may have asked at once: one goes on
        timer = setTimeout(tick, shown.data && view.isUnfinished?.(shown.data) ? Math.min(EVERY_MS, SOON_MS) : EVERY_MS);
      }
    }
  }
}

function tick() {
  if (document.hidden) return; // `visibilitychange` goes on
  if (isDragging()) timer = setTimeout(tick, SOON_MS);
  else refresh();
}

async function navigate() {
  asking.abort();
  asking = new AbortController();
  clearTimeout(timer);
  const { signal } = asking;
  const route = parse(location.hash);
  const isFirst = shown.route === null;
  markProject(route.parameters);
  markNavigation(route.name);
  main.setAttribute("aria-busy", "true");
  const load = Object.hasOwn(VIEWS, route.name) ? VIEWS[route.name] : null;
  if (!load) {
    shown = { route, view: null, text: "", refusal: "", at: 0, data: null };
    main.removeAttribute("aria-busy");
    main.dataset.shows = location.hash;
    show("Nothing is here", [h("p", null, "No view has this link. ", h("a", { href: "#/" }, "Who suffers now"))]);
    return;
  }
  let view;
  try {
    view = await whileAsking(load(), signal);
  } catch {
    if (signal.aborted) return;
    shown = { route, view: null, text: "", refusal: "", at: 0, data: null };
    main.removeAttribute("aria-busy");
    show("No answer", [problem(new AskError(0, "central does not answer; load the page again once it does"))]);
    return;
  }
  if (signal.aborted) return;
  const isSame = shown.route?.name === route.name && shown.route?.what === route.what;
  shown = { route, view, text: "", refusal: "", at: 0, data: null };
  updated.textContent = "";
  document.title = readable(`${view.title(route)} · whitepanda`);
  // What takes long keeps its question in sight; an answer to another one goes.
  if (!isSame || view.isLive === false) show(view.title(route), [view.form?.(route), h("p", { class: "quiet" }, "Asking central …")]);
  if (!isFirst && !isSame) {
    window.scrollTo(0, 0);
    main.querySelector("h1").focus({ preventScroll: true });
  }
  await refresh();
}

window.addEventListener("hashchange", navigate);
document.addEventListener("changed", () => shown.view && refresh()); // somebody had central do something
setInterval(keepAgo, 10_000);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && shown.view && (shown.view.isLive !== false)) {
    clearTimeout(timer);
    refresh();
  }
});
document.getElementById("zone").textContent = zone();
// Charts have their colours from the style sheet at the time they are drawn.
const redraw = () => shown.data && show(shown.view.title(shown.route, shown.data), shown.view.draw(shown.data, shown.route));
document.addEventListener("colours", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
document.querySelector("a.skip").addEventListener("click", (event) => {
  event.preventDefault(); // the link's place is not a view
  main.focus();
});
navigate();
