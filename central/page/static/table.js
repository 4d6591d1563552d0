// Tables with a caption, buttons that sort, and a filter where there are many rows.
import { h } from "./dom.js";
import { csvButton } from "./csv.js";
import { count, counted } from "./format.js";

const SHOWN = 200;
const FILTERED_FROM = 15;

/** How each table is sorted, filtered and unfolded, by its id: kept while views are redrawn. */
const states = new Map();

function order(a, b) {
  const unknownA = a === null || a === undefined || Number.isNaN(a);
  const unknownB = b === null || b === undefined || Number.isNaN(b);
  if (unknownA || unknownB) return null;
  return typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
}

function sorted(rows, column, descending) {
  return rows
    .map((row, k) => [row, column.value(row), k])
    .sort(([, a, k], [, b, l]) => {
      const found = order(a, b);
      if (found !== null) return (descending ? -found : found) || k - l;
      const isKnown = (x) => x !== null && x !== undefined && !Number.isNaN(x);
      return Number(isKnown(b)) - Number(isKnown(a)) || k - l; // what is not known comes last, either way
    })
    .map(([row]) => row);
}

/**
 * A table.
 *
 * @param {string} id of the table in the whole page.
 * @param {string} caption what its rows are.
 * @param {Array} columns each {label, value: row => what it is sorted by, cell: row => what is shown (or the value),
 *   numeric, isLeast: a narrow page goes without it}; the first one heads the row.
 * @param {Array} rows in the order in which they come where nobody sorts.
 * @param {string} empty what is said without rows.
 * @param {object} remote where `rows` are a page: {all: async () => every row, for a file}; where central sorts also
 *   {order, descending, sort: (order, descending) => {}}: columns have an `order` then, or cannot be sorted.
 * @param {number} most rows that are shown unless somebody wants all.
 */
export function table(id, caption, columns, rows, empty, remote = null, most = SHOWN) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  const state = states.get(id) ?? { column: -1, descending: false, filter: "", all: false };
  states.set(id, state);
  const isSorted = Boolean(remote?.sort); // by central
  const body = h("tbody");
  const kind = (column) => [column.numeric && "number", column.isLeast && "least"].filter(Boolean).join(" ") || null;
  const note = h("p", { class: "quiet", id: `${id}-note`, "aria-live": "polite" });
  const headers = columns.map((column, k) => {
    if (isSorted && !column.order) return h("th", { scope: "col", class: kind(column), title: column.hint }, h("span", null, column.label));
    const sort = () => {
      if (isSorted) {
        remote.sort(column.order, remote.order === column.order ? !remote.descending : Boolean(column.numeric));
        return;
      }
      if (state.column === k) state.descending = !state.descending;
      else Object.assign(state, { column: k, descending: Boolean(column.numeric) });
      fill();
    };
    return h("th", { scope: "col", class: kind(column) },
      h("button", { type: "button", id: `${id}-sort-${k}`, onclick: sort, title: column.hint }, column.label));
  });

  function fill() {
    const wanted = state.filter.toLowerCase();
    const matching = wanted
      ? rows.filter((row) => columns.some((column) => typeof column.value(row) === "string" && column.value(row).toLowerCase().includes(wanted)))
      : rows;
    const inOrder = state.column < 0 ? matching : sorted(matching, columns[state.column], state.descending);
    const shown = state.all ? inOrder : inOrder.slice(0, most);
    headers.forEach((header, k) => {
      if (isSorted ? columns[k].order === remote.order : k === state.column) header.setAttribute("aria-sort", (isSorted ? remote : state).descending ? "descending" : "ascending");
      else header.removeAttribute("aria-sort");
    });
    body.replaceChildren(...shown.map((row) =>
      h("tr", null, columns.map((column, k) =>
        h(k ? "td" : "th", { scope: k ? null : "row", class: kind(column), "data-label": column.label }, (column.cell ?? column.value)(row))))));
    const rest = inOrder.length - shown.length;
    note.replaceChildren();
    if (wanted) note.append(`${count(inOrder.length)} of ${count(rows.length)} match. `);
    if (rest > 0) {
      const unfold = () => {
        state.all = true;
        fill();
        headers[0].firstChild.focus();
      };
      note.append(`${counted(rest, "more row")}. `, h("button", { type: "button", id: `${id}-all`, onclick: unfold }, "Show all"));
    }
  }

  fill();
  const filter = h("input", {
    type: "search", id: `${id}-filter`, value: state.filter, placeholder: "Filter", "aria-label": `Filter: ${caption}`,
    oninput: (event) => { state.filter = event.target.value; fill(); },
  });
  return h("div", { class: "table" },
    rows.length >= FILTERED_FROM && !isSorted && h("div", { class: "filter" }, filter),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table: ${caption}`, id: `${id}-scroll` },
      h("table", null, h("caption", null, caption), h("thead", null, h("tr", null, headers)), body)),
    h("div", { class: "below" }, note, csvButton(id, caption, columns, remote?.all ?? (async () => rows))));
}
