/** The engine's counters in groups that an operator looks for. Pure functions. */

export interface Counter {
  name: string;
  label: string;
  /** What is counted, in a sentence; null of a counter that is new. */
  help: string | null;
  value: number;
}

export interface CounterGroup {
  title: string;
  entries: Counter[];
}

/** What each is called and what it counts, as the metrics at /metrics say it. */
const COUNTERS: Record<string, readonly [label: string, help: string]> = {
  steps: ["Steps", "Steps that the engine has run"],
  step_failures: ["Failed steps", "Steps that failed"],
  express_steps: [
    "Small steps run first",
    "Prefill steps of tenants within their share that ran before a larger step, or between its layers",
  ],
  walks_cut: [
    "Steps with part of the queue skipped",
    "Steps that started with part of the queue not looked at, because it was too long to be searched within one step",
  ],
  places_given_up: [
    "Preempted for another tenant",
    "Running sequences preempted to give their place to another tenant",
  ],
  output_tokens: ["Output tokens", "Tokens generated"],
  prompt_tokens: ["Prompt tokens", "Prompt tokens of sequences that started"],
  cached_tokens: ["Cached prompt tokens", "Prompt tokens found in the prefix cache"],
  preemptions: ["Preemptions", "Running sequences that were preempted"],
  relegations: [
    "Moved to the lowest class",
    "Waiting sequences that were moved to the lowest class",
  ],
  requests_finished: ["Requests finished", "Requests that ended"],
  requests_aborted: ["Requests aborted", "Requests that ended because they were aborted"],
  requests_refused: [
    "Requests refused as too late",
    "Requests refused because their first token would have been too late",
  ],
  drafts_accepted: [
    "Draft tokens accepted",
    "Draft tokens that were accepted (speculative decoding)",
  ],
  drafts_rejected: [
    "Draft tokens rejected",
    "Draft tokens that were verified and rejected (speculative decoding)",
  ],
  draft_layer_bytes: ["Draft layers, memory", "Memory of the draft layers of adapters"],
  draft_layer_loads: ["Draft layers loaded", "Draft layers loaded for adapters"],
  draft_layer_failures: ["Draft layers failed to load", "Draft layers that could not be loaded"],
  draft_layer_evictions: ["Draft layers evicted", "Draft layers evicted from memory"],
  adapter_loads: ["Loaded to the device", "Adapters loaded to the device"],
  adapter_evictions: ["Evicted from the device", "Adapters evicted from the device"],
  adapter_copies: ["Copied beside the steps", "Adapters copied to the device beside the steps"],
  adapter_copies_cancelled: [
    "Copies cancelled",
    "Copies of adapters to the device that were cancelled",
  ],
  kv_evictions: ["Pages evicted from the device", "KV pages evicted from the device"],
  kv_fetches: ["Fetches from host memory", "Fetches of cached KV from host memory"],
  kv_fetches_cancelled: ["Fetches cancelled", "Fetches of cached KV that were cancelled"],
  kv_pages_fetched: ["Pages fetched from host memory", "KV pages fetched from host memory"],
  host_kv_bytes: ["Host memory in use", "Host memory that holds evicted KV"],
  host_kv_writes: ["Pages copied to host memory", "KV pages copied to host memory"],
  host_kv_evictions: ["Pages evicted from host memory", "KV pages evicted from host memory"],
  loader_host_hits: ["Found in host memory", "Adapter loads that found the adapter in host memory"],
  loader_host_evictions: ["Evicted from host memory", "Adapters evicted from host memory"],
  loader_host_bytes: ["Host memory in use", "Host memory that holds adapters"],
  loader_warmed: ["Loaded at the start", "Adapters loaded into host memory at the start"],
  loader_shared_hits: ["Found in Redis", "Adapter loads that found the adapter in Redis"],
  loader_shared_misses: [
    "Not found in Redis",
    "Adapter loads that did not find the adapter in Redis",
  ],
  loader_shared_errors: ["Redis did not answer", "Adapter loads for which Redis did not answer"],
  loader_shared_loads: ["Loaded from Redis", "Adapter loads from Redis"],
  loader_shared_corrupt: ["Unreadable in Redis", "Adapters in Redis that could not be read"],
  loader_shared_stores: ["Stored in Redis", "Adapters stored in Redis"],
  loader_shared_too_large: ["Too large for Redis", "Adapters too large to be stored in Redis"],
  loader_store_loads: ["Loaded from the object store", "Adapter loads from the object store"],
  loader_load_errors: ["Failed loads", "Adapter loads that failed"],
  loader_cancelled: ["Loads cancelled", "Adapter loads that were cancelled"],
  grammars_compiled: ["Grammars compiled", "Grammars compiled for constrained answers"],
  grammars_refused: ["Grammars refused", "Grammars that were refused or failed to compile"],
};

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
    groups[at]?.entries.push({ name, value, ...wordsOf(name) });
  }
  return groups.filter(({ entries }) => entries.length > 0);
}

/** One without words of its own is named by itself: "some_kv_bytes" as "Some KV bytes". */
function wordsOf(name: string): Pick<Counter, "label" | "help"> {
  const [label, help] = COUNTERS[name] ?? [];
  if (label !== undefined && help !== undefined) return { label, help };
  const words = name.replaceAll("_", " ").replace(/\bkv\b/g, "KV");
  return { label: words.charAt(0).toUpperCase() + words.slice(1), help: null };
}
