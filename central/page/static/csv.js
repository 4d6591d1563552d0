// A table's rows as a file of comma-separated values, made in the browser.
import { h } from "./dom.js";
import { count } from "./format.js";

// A spreadsheet takes what begins so for a formula, and names are others' words.
const FORMULA = /^[=+\-@\t\r]/;

function field(column, row) {
  const value = column.value(row);
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  if (column.isTime) return value ? new Date(Math.abs(value) / 1e6).toISOString() : "";
  if (typeof value === "number") return String(value);
  const text = FORMULA.test(value) ? `'${value}` : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function csv(columns, rows) {
  const kept = columns.filter((column) => !column.isControl);
  return [kept.map((column) => field({ value: () => column.label }, null)), ...rows.map((row) => kept.map((column) => field(column, row)))]
    .map((fields) => `${fields.join(",")}\r\n`).join("");
}

/** A button that saves what `all` returns, a promise of every row; with `isCut` of the first ones, which the button says. */
export function csvButton(id, caption, columns, all) {
  const save = async (event) => {
    const button = event.currentTarget;
    button.disabled = true;
    try {
      const rows = await all();
      const address = URL.createObjectURL(new Blob([csv(columns, rows)], { type: "text/csv" }));
      h("a", { href: address, download: `whitepanda-${id}.csv` }).click();
      setTimeout(() => URL.revokeObjectURL(address), 60_000);
      button.textContent = rows.isCut ? `CSV: only the first ${count(rows.length)} rows` : "CSV";
    } catch (error) {
      button.textContent = `CSV: ${error.message}`;
    } finally {
      button.disabled = false;
    }
  };
  return h("button", { type: "button", class: "csv", id: `${id}-csv`, "aria-label": `CSV: ${caption}`, onclick: save }, "CSV");
}
