/** The engine's counters in groups that an operator looks for. Pure functions. */

export interface Counter {
  name: string;
  label: string;
  value: number;
}

export interface CounterGroup {
  title: string;
  entries: Counter[];
}

/** The first that a name matches; what none matches stands under the last. */
const GROUPS: readonly [string, RegExp][] = [
  ["Requests and tokens", /^(requests|prompt|output|cached)_|^(preemptions|relegations)$/],
  ["Adapters", /^(adapter|loader)_/],
  ["KV cache", /^(host_)?kv_/],
  ["Scheduling", /./],
];

/** In the order of the groups; within one as the engine tells them. Groups without one are left out. */
export function counterGroups(counters: Readonly<Record<string, number>>): CounterGroup[] {
  const groups = GROUPS.map(([title]): CounterGroup => ({ title, entries: [] }));
  for (const [name, value] of Object.entries(counters)) {
    const at = GROUPS.findIndex(([, names]) => names.test(name));
    groups[at]?.entries.push({ name, label: labelOf(name), value });
  }
  return groups.filter(({ entries }) => entries.length > 0);
}

/** "host_kv_bytes" as "Host KV bytes". */
function labelOf(name: string): string {
  const words = name.replaceAll("_", " ").replace(/\bkv\b/g, "KV");
  return words.charAt(0).toUpperCase() + words.slice(1);
}
