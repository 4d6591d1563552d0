// The search box of the header: VMs (also gone ones), hosts, jobs and projects, by keyboard ("/" goes there).
import { ask, AskError } from "./api.js";
import { h } from "./dom.js";
import { project } from "./words.js";

const WAIT_MS = 120;
const SHOWN = 12;

const input = document.getElementById("search");
const list = document.getElementById("search-hits");
let asking = new AbortController();
let timer = 0;
let hits = [];
let at = -1; // the hit that Enter opens

const narrowed = (path) => (project() ? `${path}${path.includes("?") ? "&" : "?"}${new URLSearchParams({ project: project() })}` : path);
const LINKS = {
  vm: (hit) => narrowed(`#/vm/${encodeURIComponent(hit.vm)}`),
  host: (hit) => narrowed(`#/host/${encodeURIComponent(hit.name)}`),
  job: (hit) => narrowed(`#/job/${encodeURIComponent(hit.name)}`),
  project: (hit) => `#/${hit.gone ? "incidents" : "vms"}?${new URLSearchParams({ project: hit.name })}`, // only VMs that run are listed
};
const everything = () => narrowed(`#/vms?${new URLSearchParams({ text: input.value.trim() })}`);

function about(hit) {
  if (hit.kind !== "vm") return hit.gone ? `${hit.kind}, its VMs are gone` : hit.kind;
  return [hit.gone ? "VM, gone" : "VM", hit.job && `of job ${hit.job}`, hit.host && `${hit.gone ? "last " : ""}on ${hit.host}`].filter(Boolean).join(" ");
}

function close() {
  asking.abort();
  clearTimeout(timer);
  list.hidden = true;
  input.setAttribute("aria-expanded", "false");
  input.removeAttribute("aria-activedescendant");
  at = -1;
}

function go(link) {
  close();
  input.value = "";
  location.hash = link;
}

function mark(place) {
  at = place;
  for (const [k, each] of [...list.children].entries()) each.setAttribute("aria-selected", String(k === at));
  if (at >= 0) {
    input.setAttribute("aria-activedescendant", list.children[at].id);
    list.children[at].scrollIntoView({ block: "nearest" });
  } else input.removeAttribute("aria-activedescendant");
}

function show(said = "") {
  const option = (k, link, ...children) => h("li", { role: "option", id: `hit-${k}`, "aria-selected": "false", onpointerdown: (event) => { event.preventDefault(); go(link); } }, children);
  list.replaceChildren(...hits.map((hit, k) => option(k, LINKS[hit.kind](hit), h("strong", null, hit.name || hit.vm), " ", h("span", { class: "quiet" }, about(hit)))));
  if (!hits.length) list.append(option(0, everything(), h("span", { class: "quiet" }, said || "Nothing is called so. Enter searches the list of VMs.")));
  list.hidden = false;
  input.setAttribute("aria-expanded", "true");
  mark(hits.length ? 0 : -1);
}

async function look() {
  const text = input.value.trim();
  asking.abort();
  if (!text) {
    close();
    return;
  }
  asking = new AbortController();
  const { signal } = asking;
  try {
    const answer = await ask("v1/search", { text, top: SHOWN, project: project() }, signal);
    if (signal.aborted) return;
    hits = answer.hits.filter((hit) => Object.hasOwn(LINKS, hit.kind));
    show();
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof AskError)) throw error;
    hits = [];
    show(`Central cannot search: ${error.message}`);
  }
}

input.addEventListener("input", () => {
  clearTimeout(timer);
  hits = []; // of another text
  at = -1;
  timer = setTimeout(look, WAIT_MS);
});
input.addEventListener("focus", () => input.value.trim() && look());
input.addEventListener("blur", close);
input.addEventListener("keydown", (event) => {
  if (event.key === "Escape") close();
  else if (event.key === "Enter") {
    event.preventDefault();
    if (!input.value.trim()) return;
    go(!list.hidden && at >= 0 && hits[at] ? LINKS[hits[at].kind](hits[at]) : everything());
  } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && !list.hidden && hits.length) {
    event.preventDefault();
    mark((at + (event.key === "ArrowDown" ? 1 : hits.length - 1)) % hits.length);
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.ctrlKey && !event.metaKey && !event.altKey && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName ?? "")) {
    event.preventDefault();
    input.focus();
    input.select();
  }
});
