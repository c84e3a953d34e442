import { expect, it } from "vitest";
import { counterGroups } from "./model";

it("puts each counter under one title, and what is new under the last", () => {
  const groups = counterGroups({
    steps: 3,
    kv_evictions: 1,
    host_kv_bytes: 2,
    loader_warmed: 4,
    requests_finished: 5,
    something_new: 6,
  });
  expect(groups.map(({ title, entries }) => [title, entries.map(({ label }) => label)])).toEqual([
    ["Requests and tokens", ["Requests finished"]],
    ["Adapters", ["Loaded at the start"]],
    ["KV cache", ["Pages evicted from the device", "Host memory in use"]],
    ["Scheduling", ["Steps", "Something new"]],
  ]);
});
