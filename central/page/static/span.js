// The time that a view shows: hours=1 to 24 that end now, or at=milliseconds since 1970.
import { AskError } from "./api.js";
import { field, form } from "./dom.js";

const HOUR_MS = 3_600_000;
const MOST_HOURS = 24;
const HOURS = [["1", "1 hour"], ["3", "3 hours"], ["6", "6 hours"], ["24", "24 hours"]];

const canBe = (hours) => Number(hours) > 0 && Number(hours) <= MOST_HOURS;

/**
 * The time that a link asks for.
 *
 * @param {object} parameters of the link.
 * @param {number} points the time is cut into: it ends on their grid, so that nothing changes until the next one begins.
 * @returns {object} since and until, milliseconds since 1970.
 */
export function span({ hours = "1", at }, points) {
  if (!canBe(hours)) {
    throw new AskError(400, `hours=${hours} cannot be shown; it is a number above 0 and at most ${MOST_HOURS}`);
  }
  if (at !== undefined && !/^\d{1,14}$/.test(at)) {
    throw new AskError(400, `at=${at} is no time; it is milliseconds since 1970, such as ${Date.now()}`);
  }
  const length = Number(hours) * HOUR_MS;
  const step = length / points;
  const until = Number(at) || Math.ceil(Date.now() / step) * step;
  return { since: Math.max(0, until - length), until };
}

/** The form that chooses it, for the view at a path. */
export function spanForm(path, { hours = "1" }) {
  const options = HOURS.some(([value]) => value === hours) || !canBe(hours) ? HOURS : [...HOURS, [hours, `${hours} hours`]];
  return form(path, "Time shown", "Show", field("Time", { name: "hours", value: hours }, options));
}
