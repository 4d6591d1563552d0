// Charts by uPlot, which is fetched when the first one is drawn. Each is one image to a screen reader, with a sentence;
// the figures are in tables beside it.
import { h, readable, svg } from "./dom.js";
import { clock, isKnown, short } from "./format.js";
import { zoom } from "./span.js";

let library;

function uplot() {
  library ??= new Promise((resolve, reject) => {
    const style = h("link", { rel: "stylesheet", href: "page/vendor/uPlot.min.css" });
    const script = h("script", { src: "page/vendor/uPlot.iife.min.js" });
    script.addEventListener("load", () => resolve(window.uPlot));
    script.addEventListener("error", () => {
      library = undefined;
      reject(new Error("uPlot cannot be loaded"));
    });
    document.head.append(style, script);
  });
  return library;
}

/** How many colours there are. */
export const COLOURS = 8;

/** Colours that people who see red and green alike can tell apart (Okabe and Ito), as the style sheet has them. */
const colour = (k) => getComputedStyle(document.documentElement).getPropertyValue(`--line-${(k % COLOURS) + 1}`).trim();
const named = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function axis(more) {
  return { stroke: named("--quiet"), grid: { stroke: named("--grid"), width: 1 }, ticks: { stroke: named("--grid"), width: 1 }, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", ...more };
}

/** Shade times behind the lines: `spans` are [from, to] in the unit of x. */
function shades(spans) {
  return {
    hooks: {
      drawClear: (u) => {
        u.ctx.save();
        u.ctx.fillStyle = named("--shade");
        for (const [from, to] of spans) {
          const left = Math.max(u.bbox.left, u.valToPos(from, "x", true));
          const right = Math.min(u.bbox.left + u.bbox.width, Math.max(u.valToPos(to, "x", true), left + 2));
          if (right > left) u.ctx.fillRect(left, u.bbox.top, right - left, u.bbox.height);
        }
        u.ctx.restore();
      },
    },
  };
}

/** Lines across with their numbers: `marks` are {at: seconds, label}. */
function marked(marks) {
  return {
    hooks: {
      draw: (u) => {
        const { left, top, width, height } = u.bbox;
        u.ctx.save();
        u.ctx.strokeStyle = u.ctx.fillStyle = named("--mark");
        u.ctx.setLineDash([4, 4]);
        u.ctx.lineWidth = devicePixelRatio;
        u.ctx.font = `600 ${11 * devicePixelRatio}px system-ui, sans-serif`;
        for (const { at, label } of marks) {
          const x = u.valToPos(at, "x", true);
          if (x < left || x > left + width) continue;
          u.ctx.beginPath();
          u.ctx.moveTo(x, top);
          u.ctx.lineTo(x, top + height);
          u.ctx.stroke();
          u.ctx.fillText(label, Math.min(x + 3 * devicePixelRatio, left + width - 14 * devicePixelRatio), top + 11 * devicePixelRatio);
        }
        u.ctx.restore();
      },
    },
  };
}

const HEIGHT = 220;
const MOST_BANDS = 3; // more would hide each other
const BAND = "26"; // how opaque, as a colour's last two digits
const END = "80";
const LEAST_DRAG = 8; // pixels

// A touch that scrolls the page ends with a cancel.
for (const end of ["pointerup", "pointercancel"]) {
  document.addEventListener(end, () => document.querySelectorAll(".chart[data-dragged]").forEach((place) => { delete place.dataset.dragged; }));
}
/** Charts that were made: those that left the page are destroyed, or uPlot's cursor would keep them. */
const MADE = new Map();

/** Whether somebody drags in a chart just now: it must not be redrawn under the pointer. */
export const isDragging = () => document.querySelector(".chart[data-dragged]") !== null;

/** Dragging over a time shows that time: another link, for which central is asked again, so all charts follow. */
function zoomed(place) {
  return {
    hooks: {
      ready: (u) => {
        u.over.addEventListener("pointerdown", () => { place.dataset.dragged = "yes"; });
      },
      setSelect: (u) => {
        delete place.dataset.dragged;
        if (u.select.width < LEAST_DRAG) return;
        zoom(u.posToVal(u.select.left, "x") * 1e3, u.posToVal(u.select.left + u.select.width, "x") * 1e3);
      },
    },
  };
}

function chart(title, sentence, data, options) {
  const place = h("div", { class: "chart", role: "img", "aria-label": `${title}. ${sentence}` });
  const figure = h("figure", null, h("figcaption", null, title, h("span", { class: "quiet", "aria-hidden": "true" }, sentence)), place);
  const draw = async () => {
    const uPlot = await uplot();
    if (!place.isConnected || !place.clientWidth) return;
    const made = new uPlot({ width: place.clientWidth, height: HEIGHT, ...options(uPlot, place) }, data, place);
    for (const [old, its] of MADE) {
      if (old.isConnected) continue;
      its.destroy();
      MADE.delete(old);
    }
    MADE.set(place, made);
    const resized = new ResizeObserver(() => {
      if (!place.isConnected) resized.disconnect();
      else if (place.clientWidth && place.clientWidth !== made.width) made.setSize({ width: place.clientWidth, height: HEIGHT });
    });
    resized.observe(place);
    place.dataset.drawn = "yes";
  };
  // In the document it has a width.
  requestAnimationFrame(() => draw().catch((error) => place.append(h("p", { class: "problem" }, error.message))));
  return figure;
}

const clocks = (_u, ticks, _axis, _space, step) => ticks.map((s) => clock(s * 1e3).slice(11, step < 60 ? undefined : -3));

/** Values of which gaps of up to `most` steps are drawn over (undefined): windows may be longer than steps. */
function bridged(values, most) {
  const found = [...values];
  let last = -1;
  values.forEach((value, k) => {
    if (value === null) return;
    if (last >= 0 && k - last - 1 <= most) found.fill(undefined, last + 1, k);
    last = k;
  });
  return found;
}

/** Whether both ends of a line's interval are known somewhere. */
const isBetween = ({ low = [], high = [] }) => low.some((value, k) => isKnown(value) && isKnown(high[k]));

/**
 * Lines over time.
 *
 * @param {string} title above it.
 * @param {string} sentence what it shows: below the title, and for those who do not see the lines.
 * @param {number[]} seconds since 1970.
 * @param {Array} lines each {label, values (null where not known), dash: whether it is a threshold, points, colour: its
 *   number where it is not its place, low and high: ends of its interval}.
 * @param {string} unit of y.
 * @param {Array} spans [from, to] in seconds that are shaded.
 * @param {number} most gaps of so many steps are drawn over.
 * @param {Array} marks {at, label} in seconds.
 */
export function timeChart(title, sentence, seconds, lines, unit, spans = [], most = 0, marks = []) {
  const isShort = lines.every((line) => line.values.filter((value) => value !== null).length < 3);
  const colours = lines.map((line, k) => line.colour ?? k);
  const between = lines.map((_, k) => k).filter((k) => isBetween(lines[k]));
  const bands = between.length <= MOST_BANDS ? between : [];
  const data = [...lines.map((line) => line.values), ...bands.flatMap((k) => [lines[k].high, lines[k].low])];
  const said = bands.length ? `${sentence} Bands: intervals.` : sentence;
  return chart(title, said, [seconds, ...data.map((values) => bridged(values, most))], (_uPlot, place) => ({
    scales: { x: { time: true, range: seconds.length > 1 ? [seconds[0], seconds.at(-1)] : undefined } },
    legend: { live: true },
    cursor: { sync: { key: "times" }, drag: { x: true, y: false, setScale: false } },
    plugins: [shades(spans), marked(marks), zoomed(place)],
    axes: [axis({ values: clocks }), axis({ label: unit, size: 60, values: (_u, ticks) => ticks.map(short) })],
    bands: bands.map((k, j) => ({ series: [lines.length + 2 * j + 1, lines.length + 2 * j + 2], fill: `${colour(colours[k])}${BAND}` })),
    series: [
      { label: "Time", value: (_u, s) => (s === null ? "–" : clock(s * 1e3)) },
      ...lines.map((line, k) => ({
        label: readable(line.label),
        stroke: line.dash && !line.isBeside ? named("--ink") : colour(colours[k]),
        width: line.dash ? 1 : 2,
        dash: line.dash ? [6, 4] : undefined,
        spanGaps: false,
        points: { show: isShort || line.points || undefined },
        value: (_u, value, _k, at) => `${short(value)}${isKnown(line.low?.[at]) && isKnown(line.high?.[at]) ? ` [${short(line.low[at])}, ${short(line.high[at])}]` : ""}`,
      })),
      ...bands.flatMap((k) => ["to", "from"].map((end) => ({
        label: readable(`${lines[k].label}, ${end}`), class: "end", stroke: `${colour(colours[k])}${END}`, width: 1, spanGaps: false, points: { show: false }, value: (_u, value) => short(value),
      }))),
    ],
  }));
}

/** A value with its interval at each of some places in order, such as versions. */
export function bandChart(title, sentence, x, middle, low, high, labels, unit) {
  return chart(title, sentence, [x, middle, low, high], () => ({
    scales: { x: { time: false } },
    axes: [axis({ label: labels, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] }), axis({ label: unit, size: 70 })],
    bands: [{ series: [3, 2], fill: named("--band") }],
    series: [
      { label: labels },
      { label: "value", stroke: colour(0), width: 2, points: { show: true } },
      { label: "95 % from", stroke: colour(0), width: 1, dash: [3, 3], points: { show: false } },
      { label: "to", stroke: colour(0), width: 1, dash: [3, 3], points: { show: false } },
    ].map((series, k) => (k ? { ...series, value: (_u, value) => (value === null || value === undefined ? "–" : value.toPrecision(4)) } : series)),
  }));
}

/** Counts in bins, a stair for each of the series. */
export function histogram(title, sentence, edges, series, unit, what) {
  const stairs = (uPlot) => uPlot.paths.stepped({ align: 1 });
  // A stair goes on to the end of its bin: one point more, of the same height.
  const data = [edges, ...series.map((one) => [...one.counts, one.counts.at(-1)])];
  return chart(title, sentence, data, (uPlot) => ({
    scales: { x: { time: false }, y: { range: (_u, _low, high) => [0, Math.max(1, high * 1.1)] } },
    axes: [axis({ label: unit }), axis({ label: what, size: 60 })],
    series: [
      { label: unit, value: (_u, value) => (value === null ? "–" : value.toFixed(2)) },
      ...series.map((one, k) => ({
        label: readable(one.label), stroke: colour(k), width: 2, fill: series.length === 1 ? named("--band") : undefined,
        paths: stairs(uPlot), points: { show: false },
      })),
    ],
  }));
}

const SPARK_WIDTH = 140;
const SPARK_HEIGHT = 28;

/** A small line within a row; gaps of more than `most` steps stay gaps. */
export function spark(values, sentence, most = 0) {
  const known = values.filter((value) => value !== null);
  const low = Math.min(...known);
  const high = Math.max(...known);
  const y = (value) => SPARK_HEIGHT - 3 - ((value - low) / (high - low || 1)) * (SPARK_HEIGHT - 6);
  const x = (k) => (values.length > 1 ? (k / (values.length - 1)) * (SPARK_WIDTH - 2) + 1 : SPARK_WIDTH / 2);
  let path = "";
  let isGap = true;
  bridged(values, most).forEach((value, k, all) => {
    if (value === null) isGap = true;
    if (value === null || value === undefined) return;
    path += `${isGap ? "M" : "L"}${x(k).toFixed(1)} ${y(value).toFixed(1)}`;
    if (isGap && (k + 1 === all.length || all[k + 1] === null)) path += "h1";
    isGap = false;
  });
  return svg("svg", { class: "spark", width: SPARK_WIDTH, height: SPARK_HEIGHT, viewBox: `0 0 ${SPARK_WIDTH} ${SPARK_HEIGHT}`, role: "img", "aria-label": sentence },
    svg("path", { d: path }));
}

/** Charts beside each other; `made` are charts, or texts that name what is not known, which are one line together. */
export function charts(made, several = "charts") {
  const absent = made.filter((each) => typeof each === "string");
  return [
    h("div", { class: several }, made.filter((each) => typeof each !== "string")),
    absent.length > 0 && h("p", { class: "quiet absent" }, `Not known here: ${absent.join(", ")}.`),
  ];
}
