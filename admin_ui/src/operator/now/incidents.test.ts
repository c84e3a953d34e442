import { expect, test } from "vitest";
import { booksOf, incidents, type Known } from "./incidents";
import { type Answer, type EngineNow, type Line, readEngine, readProcesses } from "./model";

const line = (metric: string, more: Partial<Line>): Line => ({
  metric,
  unit: "count",
  values: [null, 0, 0, 0],
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
const acme = { tenant_id: "tenant_1", tenant_name: "acme" };
const quiet: Known = {
  byTenant: undefined,
  hour: undefined,
  engine: null,
  processes: null,
  books: null,
  nowS: 200,
};
const engine = (more: object) => readEngine({ at: 200, ready: true, ...more }) as EngineNow;

test("every kind of incident has a start, says whose calls it is about, and leads somewhere", () => {
  const found = incidents({
    byTenant: answer(
      line("errors", { ...acme, kind: "503", service_class: "default", values: [null, 0, 2, 1] }),
      line("errors", { ...acme, kind: "429", service_class: "default", values: [null, 9, 9, 9] }),
      line("ttft_attainment", {
        ...acme,
        service_class: "priority",
        target_ms: 500,
        met: [0, 5, 0, 1],
        promised: [0, 5, 5, 5],
      }),
    ),
    hour: answer(line("restarts", { kind: "api-1", values: [null, 0, 1, 0] })),
    engine: engine({
      oldest_wait_s_by_class: { default: 12, priority: 0.5 },
      oldest_wait_tenant_by_class: { default: "tenant_1" },
    }),
    processes: readProcesses({
      known: true,
      processes: [{ id: "p1", name: "worker", outages: { usage: "no database" } }],
      warnings: [{ about: "unbilled", text: "3 events have no price.", since: 150 }],
      since: { "p1 usage": 90 },
    }),
    books: { sinceS: 30, unbilled: ["tenant_1"], differing: [] },
    nowS: 200,
  });
  expect(
    found.map(({ grade, text, sinceS, tenants, to }) => [
      grade,
      text,
      sinceS,
      tenants[0]?.name ?? null,
      to,
    ]),
  ).toEqual([
    ["bad", "The background task “usage” of worker fails: no database", 90, null, "#processes"],
    [
      "bad",
      "3 calls answered with 503 in the last 10 minutes",
      120,
      "acme",
      "/operator/rejected?start=120&end=260&status=503&tenant=tenant_1",
    ],
    [
      "fair",
      "A request of class default has waited for 12.00 s.",
      188,
      "acme",
      "/operator/fairness",
    ],
    [
      "fair",
      "Class priority: 6 of 15 sequences met their TTFT target in the last 10 minutes, target 500 ms",
      120,
      "acme",
      "/operator/requests?start=120&end=260&sort=-ttft&tenant=tenant_1",
    ],
    ["fair", "api-1 was restarted once in the last hour.", 120, null, "#processes"],
    ["fair", "3 events have no price.", 30, "acme", "/operator/billing?tab=waiting"],
  ]);
});

test("an engine that does not serve says since when", () => {
  const down = engine({ ready: false, reason: "It is started again.", since: 170 });
  const [first] = incidents({ ...quiet, engine: down });
  expect([first?.grade, first?.sinceS, first?.to]).toEqual(["bad", 170, "/operator/engine"]);
  expect(incidents(quiet)).toEqual([]);
});

test("of many tenants the first are told, and how many more there are", () => {
  const lines = Array.from({ length: 9 }, (_, at) =>
    line("errors", { kind: "500", tenant_id: `tenant_${at}`, values: [null, 0, 0, 1] }),
  );
  const found = incidents({ ...quiet, byTenant: answer(...lines) });
  expect(found).toHaveLength(6);
  expect(found.at(-1)?.text).toBe("4 more of this kind");
  expect(booksOf(undefined)).toBeNull();
});
