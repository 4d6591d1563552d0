// Is the data whole? The lake, what was refused and why, agents that are late or gone.
import { facts, h, section } from "../dom.js";
import { bytes, count, counted, duration, number, plain, time } from "../format.js";
import { table } from "../table.js";
import { hostLink, hostState, state, usedUp } from "../words.js";

export const title = () => "Data health";

export async function load(ask) {
  const [status, health] = await Promise.all([ask("v1/status"), ask("v1/data-health")]);
  delete status.acknowledgements; // changes with each batch and is not shown
  return { status, health };
}

const DAYS = [
  { label: "Day (UTC)", value: (d) => d.day },
  { label: "Windows", value: (d) => d.rows, cell: (d) => count(d.rows), numeric: true },
  { label: "Segments", value: (d) => d.segments, cell: (d) => count(d.segments), numeric: true },
  { label: "Size", value: (d) => d.size_bytes, cell: (d) => bytes(d.size_bytes), numeric: true },
];
const REASONS = [
  { label: "Reason", value: (r) => r.reason },
  { label: "What", value: (r) => r.what },
  { label: "Count", value: (r) => r.count, cell: (r) => count(r.count), numeric: true },
];
const SILENT = [
  { label: "Host", value: (x) => x.host, cell: (x) => hostLink(x.host) },
  { label: "State", value: (x) => hostState(x.connected, x.last_seen_unix_ns), cell: (x) => state(hostState(x.connected, x.last_seen_unix_ns)) },
  { label: "Last seen", value: (x) => x.last_seen_unix_ns, cell: (x) => time(x.last_seen_unix_ns), numeric: true, isTime: true },
  { label: "Silent for", value: (x) => -x.last_seen_unix_ns, cell: (x) => (x.last_seen_unix_ns ? duration(Date.now() * 1e6 - x.last_seen_unix_ns) : number(null)), numeric: true },
  { label: "Spooled there", value: (x) => x.spooled_batches, cell: (x) => count(x.spooled_batches), numeric: true, hint: "batches, by its last word" },
  { label: "Dropped there", value: (x) => x.dropped_batches, cell: (x) => count(x.dropped_batches), numeric: true },
];
const refused = (x) => x.over_quota.reduce((sum, each) => sum + each.count, 0);
const HELD_BACK = [
  { label: "Host", value: (x) => x.host, cell: (x) => hostLink(x.host) },
  { label: "Over quota", value: usedUp, cell: (x) => (x.over_quota.length ? state("failed", usedUp(x)) : "no"), hint: "budgets of [quotas], each with what it refused within five minutes" },
  { label: "Refused", value: refused, cell: (x) => count(refused(x)), numeric: true, hint: "batches and reports of contention, within five minutes" },
  { label: "Waits between batches", value: (x) => x.min_batch_interval_ms, cell: (x) => (x.min_batch_interval_ms ? `${plain(x.min_batch_interval_ms / 1000, 1)} s` : "no"), numeric: true, hint: "as central asks" },
];
const WORKS = [
  ["Acknowledging batches", "last_commit_error"],
  ["Rolling into the lake", "last_roll_error"],
  ["Incident history", "last_incidents_error"],
  ["Building versions", "last_build_error"],
];

/** When central's certificate expires, marked from 30 days before. */
function expiry(unixNs) {
  if (!unixNs) return "not known";
  const isFar = unixNs / 1e6 - Date.now() > 30 * 86_400_000;
  return isFar ? time(unixNs) : state("failed", h("span", null, time(unixNs), ": renew it with whitepanda pki renew"));
}

export function draw({ status: s, health: d }) {
  const rejected = [
    ...s.rejected.map((each) => ({ ...each, what: "windows" })),
    ...s.rejected_values.map((each) => ({ ...each, what: "values, taken as not known" })),
    ...s.rejected_batches.map((each) => ({ ...each, what: "batches" })),
    ...s.rejected_events.map((each) => ({ ...each, what: "events" })),
    ...s.refused_streams.map((each) => ({ ...each, what: "streams, since central's start" })),
  ].sort((a, b) => b.count - a.count);
  return [
    section("Central", facts([
      ...WORKS.map(([what, key]) => [what, s[key] ? state("failed", s[key]) : state("ok", "OK")]),
      ["Version", s.central_version],
      ["Started", time(s.started_unix_ns)],
      ["Its certificate expires", expiry(s.certificate_expiry_unix_ns)],
      ["Revoked certificates", s.last_revocation_error ? state("failed", s.last_revocation_error) : count(s.revoked_certificates)],
      ["Hosts over quota", s.over_quota ? state("failed", count(s.over_quota)) : state("ok", "none")],
      ["Statistics and coefficients", s.coefficient_version ? h("span", null, `version ${s.coefficient_version}, `, time(s.coefficient_created_unix_ns)) : "none built yet"],
      ["Windows taken, ever", count(s.accepted_rows)],
      ["Batches taken, ever", count(s.accepted_batches)],
      ["Batches that came twice", count(s.duplicate_batches)],
      ["Batches that wait for the lake", count(s.journal_batches)],
      ["Damaged files of the lake", s.damaged_files ? state("failed", count(s.damaged_files)) : state("ok", "none found")],
      ["Newest segment", time(d.last_segment_unix_ns)],
      ["Machines left out of the version", s.machines_left_out.length ? state("failed", `${count(s.machines_left_out.length)}: ${s.machines_left_out.slice(0, 5).join(", ")}`) : state("ok", "none")],
      ["Too old to count in a version", s.rows_left_out ? `${counted(s.rows_left_out, "window")} of ${counted(s.days_left_out, "day")}` : "nothing"],
    ])),
    section("Agents that are late or gone", h("p", { class: "quiet" },
      `${count(d.late_hosts)} late: connected, and nothing came for eleven minutes. ${count(d.gone_hosts)} gone: not connected. ${counted(d.spooled_batches, "batch waits", "batches wait")} on hosts, ${counted(d.dropped_batches, "was", "were")} dropped there.`),
      table("health-silent", `The longest silent first${d.silent.length < d.late_hosts + d.gone_hosts ? `: ${d.silent.length} of ${count(d.late_hosts + d.gone_hosts)}` : ""}`, SILENT, d.silent, "All known hosts are reporting.")),
    section("Hosts that are held back", table("health-held-back",
      `Over quota, or asked to wait between batches, the most refusals first${d.held_back.length < d.held_back_hosts ? `: ${d.held_back.length} of ${count(d.held_back_hosts)}` : ""}`,
      HELD_BACK, d.held_back, "No host is over its quota or asked to wait.")),
    h("div", { class: "columns" },
      section("Refused, by reason", table("health-rejected", "Ever, the most first", REASONS, rejected, "Nothing was refused.")),
      section("Lake", table("health-lake", `The last days with windows, the newest first; ${counted(s.lake_rows, "window")} in ${counted(s.lake_segments, "segment")} in all`, DAYS, d.days, "The lake is empty."))),
  ];
}
