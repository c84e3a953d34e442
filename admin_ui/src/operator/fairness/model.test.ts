import { describe, expect, test } from "vitest";
import {
  type ClassFairness,
  formatSeconds,
  gapSeries,
  matrixOf,
  nearestGap,
  requestsOf,
  sentenceOf,
  shadeOf,
  type Wait,
} from "./model";

function wait(
  tenant: string,
  cause: Wait["cause"],
  other: string | null,
  seconds: number,
  sequences = 1,
): Wait {
  return {
    tenant_id: `id-${tenant}`,
    tenant_name: tenant,
    class: null,
    cause,
    other_id: other && `id-${other}`,
    other_name: other,
    seconds,
    sequences,
  };
}

function fairness(gap: number, bound: number): ClassFairness {
  const share = (tenant: string, weight: number, service: number, waited_s: number) => ({
    tenant_id: `id-${tenant}`,
    tenant_name: tenant,
    service_tokens: service * 1000,
    service_share: service,
    weight,
    weight_share: weight / 4,
    waited_s,
  });
  return {
    class: "default",
    service_tokens: 1000,
    tenants: [share("acme", 3, 0.74, 41), share("beta", 1, 0.26, 9)],
    gaps: [{ at: "2026-11-23T10:00:00Z", gap_tokens: gap, bound_tokens: bound }],
  };
}

const WAITS = [
  wait("acme", "queue", "beta", 41, 12),
  wait("beta", "queue", "acme", 9, 3),
  wait("acme", "pages", "beta", 2, 1),
  wait("acme", "own", null, 70, 20),
  wait("acme", "load", null, 0.3, 1),
];

describe("the matrix", () => {
  test("has others' doing first, most seconds first, and adds up", () => {
    const { columns, rows, most } = matrixOf(WAITS);
    expect(columns.map(({ label }) => label)).toEqual([
      "beta's queue",
      "acme's queue",
      "beta's pages",
      "Own requests",
      "Adapter load",
    ]);
    expect(rows.map(({ name }) => name)).toEqual(["acme", "beta"]);
    expect(rows[0]?.total.seconds).toBeCloseTo(113.3);
    expect(rows[0]?.cells.get("queue id-beta")).toEqual({ seconds: 41, sequences: 12 });
    expect(most).toBe(70);
  });

  test("sums the many others in one column, and loses none of their seconds", () => {
    const many = Array.from({ length: 30 }, (_, n) => wait("acme", "queue", `t${n}`, n + 1));
    const { columns, rows } = matrixOf(many);
    expect(columns).toHaveLength(13);
    expect(rows[0]?.cells.get("queue other tenants")?.seconds).toBe((18 * 19) / 2);
    expect(rows[0]?.total.seconds).toBe((30 * 31) / 2);
  });

  test("is empty of nothing", () => {
    expect(matrixOf([])).toEqual({ columns: [], rows: [], most: 0 });
  });
});

test("shades are by the part of the most, and what is something is seen", () => {
  expect([0, 0.001, 10, 50, 100].map((seconds) => shadeOf(seconds, 100))).toEqual([0, 1, 2, 4, 5]);
});

test("seconds are written as people say them", () => {
  expect([0.0123, 0.42, 9.96, 41.2, 119, 754, 9000].map(formatSeconds)).toEqual([
    "12 ms",
    "0.4 s",
    "10 s",
    "41 s",
    "119 s",
    "13 min",
    "2.5 h",
  ]);
});

describe("the sentence", () => {
  test("says who waited most for whom, whether that was its share, and what is proven", () => {
    expect(sentenceOf(WAITS, [fairness(31, 100)])).toBe(
      "acme waited 41 s behind beta's queue in 12 sequences, out of 2 min total wait time. " +
        "It received 74.0% of the service in class default and is entitled to 75.0% by weight. " +
        "Scheduling was fair: the service gap reached at most 31.0% of its proven bound.",
    );
  });

  test("says that there was nothing to compare", () => {
    expect(sentenceOf(WAITS, [fairness(0, 100)])).toContain("so there was no service gap");
  });

  test("says when the bound did not hold", () => {
    expect(sentenceOf(WAITS, [fairness(120, 100)])).toContain("exceeded its bound");
  });

  test("tells one's own doing from others'", () => {
    const own = [wait("acme", "own", null, 20), wait("acme", "queue", "beta", 0.2)];
    expect(sentenceOf(own, [])).toBe(
      "No tenant waited noticeably for another tenant. " +
        "acme waited 20 s behind its own requests, out of 20 s total wait time.",
    );
  });

  test("has little to say of little", () => {
    expect(sentenceOf([], [])).toBe("No request waited in this period.");
    expect(sentenceOf([wait("acme", "start", null, 0.2)], [])).toBe(
      "Requests hardly waited: 0.2 s in total.",
    );
  });
});

test("the nearest gap is that with the greatest part of its bound", () => {
  const flex = { ...fairness(9, 10), class: "flex" };
  expect(nearestGap([fairness(31, 100), flex])).toEqual({ class: "flex", part: 0.9 });
  expect(nearestGap([])).toBeNull();
});

describe("the gap over time", () => {
  const start = Date.parse("2026-11-23T10:00:00Z") / 1000;
  const point = (minute: number, gap: number) => ({
    at: new Date((start + 60 * minute) * 1000).toISOString(),
    gap_tokens: gap,
    bound_tokens: 10,
  });

  test("spans the range, and is nothing where nobody waited", () => {
    const { times, gap } = gapSeries([point(1, 4), point(2, 5), point(7, 6)], start, start + 600);
    expect(times.map((time) => time - start)).toEqual([0, 60, 120, 178, 179, 420, 478, 479, 600]);
    expect(gap).toEqual([null, 4, 5, 5, null, 6, 6, null, null]);
  });

  test("has its times in order whatever the ends are", () => {
    for (const gaps of [[], [point(0, 1)], [point(9, 1)], [point(0, 1), point(9.99, 1)]]) {
      const { times } = gapSeries(gaps, start, start + 600);
      expect(times).toEqual([...new Set(times)].sort((a, b) => a - b));
      expect([times[0], times.at(-1)]).toEqual([start, start + 600]);
    }
  });
});

test("a cell leads to the requests of its tenant in that time", () => {
  expect(requestsOf("ten_1", 60, 120)).toBe(
    "/operator/requests?tenant=ten_1&start=60&end=120&sort=-queue",
  );
  expect(requestsOf("other", 60, 120)).toBeNull();
});
