// Asking central. The browser keeps answers and asks whether they still hold (ETag); 304 costs nearly nothing.

/** What central answered instead: `status` 0 is no answer at all. `problem` is the message without the name of the `field` that it is about. */
export class AskError extends Error {
  constructor(status, message, field = "", problem = "") {
    super(message);
    Object.assign(this, { status, field, problem });
  }
}

const LONGEST_MS = 60_000;

/** Ask for a path with parameters; those that are "" or undefined are left out, lists are given one by one. */
export function ask(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") query.append(name, one);
    }
  }
  return answered(query.size ? `${path}?${query}` : path, { cache: "no-cache" }, signal);
}

/** Have central do something: a POST of a JSON object. */
export function send(path, body) {
  return answered(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

const MOST_PAGES = 100;
const PAGE_SIZE = 1000;

/** Every row of a list that comes in pages, for a file; `isCut` in it if there were too many. */
export async function everyRow(path, parameters, list) {
  const rows = [];
  let token = "";
  for (let page = 0; page < MOST_PAGES; page += 1) {
    const answer = await ask(path, { ...parameters, page_size: PAGE_SIZE, page_token: token });
    rows.push(...answer[list]);
    token = answer.next_page_token;
    if (!token) return rows;
  }
  return Object.assign(rows, { isCut: true });
}

/** What `asking` gives, or null where central knows nothing of what was asked for. */
export async function unlessUnknown(asking) {
  try {
    return await asking;
  } catch (error) {
    if (error instanceof AskError && error.status === 404) return null;
    throw error;
  }
}

async function answered(address, options, signal = undefined) {
  const slow = AbortSignal.timeout(LONGEST_MS);
  let answer, text;
  try {
    answer = await fetch(address, { ...options, signal: signal ? AbortSignal.any([signal, slow]) : slow });
    text = await answer.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new AskError(0, slow.aborted ? `central has not answered for ${LONGEST_MS / 1000} s` : "central does not answer");
  }
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new AskError(answer.status, `central answered ${answer.status} with something that is not JSON`);
  }
  if (!answer.ok) throw new AskError(answer.status, value.error ?? `central answered ${answer.status}`, value.field, value.problem);
  return value;
}
