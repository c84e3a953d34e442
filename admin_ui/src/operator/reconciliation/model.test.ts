import { expect, test } from "vitest";
import {
  differencesIn,
  layersOf,
  type Run,
  scopeWords,
  secondsOf,
  verdictOf,
  waitingWords,
} from "./model";

const RUN: Run = {
  object: "reconciliation.run",
  id: "recon_1",
  state: "done",
  mode: "full",
  tenant_id: null,
  first: null,
  last: null,
  asked_by: "schedule",
  asked_at: "2026-11-23T05:00:00Z",
  started_at: "2026-11-23T05:00:01Z",
  finished_at: "2026-11-23T05:00:03.5Z",
  error: null,
  agrees: true,
  looked: null,
  waiting: null,
  differences: {},
  named: [],
};

test("what a run has come to", () => {
  expect(verdictOf(RUN)).toBe("agrees");
  expect(verdictOf({ ...RUN, agrees: false, differences: { day_wrong: 2 } })).toBe("differs");
  expect(verdictOf({ ...RUN, state: "running", agrees: null })).toBe("underway");
  expect(verdictOf({ ...RUN, state: "failed", agrees: null })).toBe("failed");
  expect(differencesIn({ ...RUN, differences: { day_wrong: 2, event_changed: 1 } })).toBe(3);
  expect(secondsOf(RUN)).toBe(2.5);
});

test("what it looked at", () => {
  expect(scopeWords(RUN)).toBe("Everything");
  const part = { ...RUN, mode: "recent" as const, tenant_id: "tenant_1", first: "2026-11-01" };
  expect(scopeWords(part)).toBe("Changes for tenant_1 since 2026-11-01");
  expect(scopeWords({ ...part, last: "2026-11-01" })).toContain("on 2026-11-01");
  const none = {
    events: 5,
    archived_events: 0,
    occupancy_events: 0,
    hour_rows: 0,
    day_rows: 0,
    ledger_amounts: 0,
    invoices: 0,
    engine_days: 0,
    days: 0,
  };
  expect(layersOf(none)[0]).toEqual({ label: "events with receipts and prices", count: 5 });
});

test("what waits is named, and nothing is nothing", () => {
  const none = { unrated_events: 0, dead_letters: 0, ledger_days: 0, engine_sequences: 0 };
  expect(waitingWords(null)).toBeNull();
  expect(waitingWords(none)).toBeNull();
  expect(waitingWords({ ...none, ledger_days: 1200 })).toBe("1,200 days not posted yet");
  expect(waitingWords({ ...none, dead_letters: 1 })).toBe("1 record that could not be processed");
});
