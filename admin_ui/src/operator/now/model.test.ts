import { expect, test } from "vitest";
import {
  type Answer,
  attainment,
  type EngineNow,
  errors,
  type Line,
  probing,
  queue,
  readEngine,
  readProcesses,
  readServing,
  summed,
  throughput,
} from "./model";

const line = (metric: string, more: Partial<Line>): Line => ({
  metric,
  unit: "count",
  values: [null, 60, 120, 30],
  ...more,
});
const answer = (...series: Line[]): Answer => ({
  object: "timeseries",
  start: 0,
  end: 240,
  step_s: 60,
  times: [0, 60, 120, 180],
  known_until: 200,
  total: 1,
  sums: [],
  series,
});
const live = {
  at: 1,
  ready: true,
  reason: null,
  running: 3,
  waiting: 2,
  oldest_wait_s_by_class: { default: 12, priority: 0.5 },
  waiting_by_class: { default: 1, priority: 1 },
  output_tokens_per_s: 41.5,
  pool: { total: 100, free: 25 },
  adapters: { loading: 1 },
  last_step_ms: 8,
};
const engine = readEngine(live) as EngineNow;

test("live events are read, and what is none is not", () => {
  expect(readEngine(null)).toBeNull();
  expect(readEngine({ ready: "yes" })).toBeNull();
  expect(readServing({ at: 2, ready: false, reason: "loading" })).toBeNull();
  expect(readEngine({ at: 2, ready: false, reason: "loading" })?.reason).toBe("loading");
  expect(readProcesses({ known: true, processes: [] })).toBeNull();
});

test("lines are added up, and nobody's knowledge is not zero", () => {
  const lines = [line("x", {}), line("x", { values: [null, 1, null, 2] })];
  expect(summed(lines, 4)).toEqual([null, 61, 120, 32]);
});

test("throughput is a second's, without the minute that still runs", () => {
  const figure = throughput(answer(line("output_tokens", {})), engine);
  expect(figure.value).toBe("41.5 tok/s");
  expect(figure.values).toEqual([null, 1, 2]);
});

test("the longest wait says in which class", () => {
  const figure = queue(answer(), engine);
  expect(figure.value).toBe("12.00 s");
  expect(figure.hint).toBe("2 waiting, longest in default");
  expect(figure.tone).toBe("bad");
});

test("attainment says of how many", () => {
  const [figure] = attainment(
    answer(
      line("ttft_attainment", {
        service_class: "priority",
        target_ms: 500,
        met: [0, 9, 0, 0],
        promised: [0, 10, 0, 0],
        values: [null, 0.9, null, null],
      }),
    ),
  );
  expect(figure?.value).toBe("90.0%");
  expect(figure?.hint).toBe("9 of 10 sequences, target 500 ms");
  expect(figure?.tone).toBe("fair");
});

test("errors are told from answers", () => {
  const figure = errors(
    answer(
      line("answers", { values: [null, 100, 100, 10] }),
      line("errors", { kind: "404", values: [null, 1, 0, 0] }),
      line("errors", { kind: "500", values: [null, 0, 2, 0] }),
    ),
  );
  expect(figure.value).toBe("3");
  expect(figure.hint).toBe("of 210 responses, 2 of them 5xx");
});

test("probes are told in the server's words", () => {
  const summary = "3 versions wait to be probed; 5% of a core used.";
  const view = {
    object: "probing" as const,
    enabled: true,
    waiting: 3,
    version_id: null,
    share: 0.05,
    most_share: 0.05,
    done_in_s: null,
    summary,
  };
  expect(probing(view)).toMatchObject({ value: "3", hint: summary });
});
