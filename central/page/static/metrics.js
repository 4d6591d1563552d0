// The metrics of windows: how people call them, and their unit. Names are central's (docs/metrics.md).

/** Name, words, unit, group. */
const ALL = [
  ["slow_down_ratio", "Slow-down", "times undisturbed", "Suffering"],
  ["cpi", "CPI", "cycles per instruction", "CPU"],
  ["cpu_usage_cores", "CPU usage", "cores", "CPU"],
  ["gips", "Speed", "10⁹ instructions/s", "CPU"],
  ["frequency_ratio", "Frequency", "of nominal", "CPU"],
  ["guest_ratio", "Guest share", "of CPU time", "CPU"],
  ["cycles", "Cycles", "per window", "CPU"],
  ["instructions", "Instructions", "per window", "CPU"],
  ["running_ratio", "Counters ran", "of CPU time", "CPU"],
  ["run_queue_wait_ratio", "Waits for a CPU", "s per s", "CPU"],
  ["core_stall_ratio", "Core stalls", "of cycles", "CPU"],
  ["cpu_throttled_ratio", "Throttled", "s per s", "CPU"],
  ["llc_mpki", "LLC misses", "per 1,000 instructions", "Memory"],
  ["l2_mpki", "L2 misses", "per 1,000 instructions", "Memory"],
  ["memory_stall_ratio", "Memory stalls", "of cycles", "Memory"],
  ["total_stall_ratio", "All stalls", "of cycles", "Memory"],
  ["llc_occupancy_bytes", "LLC occupancy", "bytes", "Memory"],
  ["memory_bandwidth_bytes_per_s", "Memory bandwidth", "bytes/s", "Memory"],
  ["memory_bandwidth_local_bytes_per_s", "Memory bandwidth, local", "bytes/s", "Memory"],
  ["memory_charged_bytes", "Memory", "bytes", "Memory"],
  ["numa_remote_memory_ratio", "Remote memory", "of memory", "Memory"],
  ["pressure_cpu_some_ratio", "CPU pressure", "of time", "Pressure"],
  ["pressure_memory_some_ratio", "Memory pressure", "of time", "Pressure"],
  ["pressure_memory_full_ratio", "Memory pressure, all threads", "of time", "Pressure"],
  ["pressure_io_some_ratio", "I/O pressure", "of time", "Pressure"],
  ["pressure_io_full_ratio", "I/O pressure, all threads", "of time", "Pressure"],
  ["disk_read_bytes_per_s", "Disk reads", "bytes/s", "Disk"],
  ["disk_write_bytes_per_s", "Disk writes", "bytes/s", "Disk"],
  ["disk_read_ops_per_s", "Disk read requests", "1/s", "Disk"],
  ["disk_write_ops_per_s", "Disk write requests", "1/s", "Disk"],
  ["network_receive_bytes_per_s", "Received", "bytes/s", "Network"],
  ["network_transmit_bytes_per_s", "Sent", "bytes/s", "Network"],
  ["network_receive_packets_per_s", "Packets received", "1/s", "Network"],
  ["network_transmit_packets_per_s", "Packets sent", "1/s", "Network"],
  ["network_receive_drops_per_s", "Received drops", "1/s", "Network"],
  ["network_transmit_drops_per_s", "Sent drops", "1/s", "Network"],
].map(([name, label, unit, group]) => ({ name, label, unit, group }));

const BY_NAME = new Map(ALL.map((each) => [each.name, each]));

/** A metric by its name; one that is not known here is called as central calls it. */
export const metric = (name) => BY_NAME.get(name) ?? { name, label: name, unit: "", group: "Other" };

/** Metrics by group, in order. */
export const groups = () => Object.entries(Object.groupBy(ALL, (each) => each.group));

/** The ends of a metric's interval, which are drawn with it. */
const ENDS = new Map([["slow_down_ratio", ["slow_down_low_ratio", "slow_down_high_ratio"]]]);

/** Metrics to ask for, so that these can be drawn with their intervals. */
export const withEnds = (names) => [...new Set([...names, ...names.flatMap((name) => ENDS.get(name) ?? [])])];

/** A line's values of a metric, with the ends of the interval where there is one. */
export function withInterval(values, name) {
  const [low, high] = ENDS.get(name) ?? [];
  return { values: values[name] ?? [], low: values[low] ?? [], high: values[high] ?? [] };
}

/** The metrics that a link asks for, at most eight, or the usual ones. */
export function chosen(text, usual) {
  const names = [...new Set((text ?? "").split(",").filter(Boolean))].slice(0, 8);
  return names.length ? names : usual;
}
