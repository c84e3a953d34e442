import { expect, test } from "vitest";
import { bodyOf, type Delivery, fieldsOf, NEW_ENDPOINT, outcome, typeWords } from "./model";

const DELIVERY: Delivery = {
  object: "webhook_delivery",
  id: "delivery_1",
  event_id: "evt_1",
  type: "invoice.final",
  state: "waiting",
  attempts: 0,
  next_at: null,
  last_at: null,
  last_status: null,
  last_error: null,
  created_at: "2026-11-23T00:00:00Z",
};

test("what became of an attempt", () => {
  expect(outcome(DELIVERY)).toBe("not attempted yet");
  expect(outcome({ ...DELIVERY, attempts: 1 })).toBe("no response");
  expect(outcome({ ...DELIVERY, attempts: 1, last_status: 204 })).toBe("status 204");
  const failed = { ...DELIVERY, attempts: 3, last_status: 503, last_error: "status 503: busy" };
  expect(outcome(failed)).toBe("status 503: busy");
});

test("every event, or some of them", () => {
  expect(typeWords(null)).toBe("all events");
  expect(typeWords(["a.b", "c.d"])).toBe("a.b, c.d");
  expect(typeWords(["a.b", "c.d", "e.f", "g.h"])).toBe("a.b, c.d and 2 more");
});

test("a form is sent as it was read", () => {
  const endpoint = {
    object: "webhook_endpoint" as const,
    id: "webhook_1",
    url: "https://a.example",
    types: ["budget.soft"],
    description: "ops",
    enabled: true,
    created_by: null,
    url_by: null,
    disabled_reason: null,
    previous_expires_at: null,
    created_at: "2026-11-23T00:00:00Z",
  };
  const body = bodyOf(fieldsOf(endpoint));
  expect(body).toEqual({ url: endpoint.url, description: "ops", types: ["budget.soft"] });
  expect(bodyOf({ ...NEW_ENDPOINT, url: " https://b.example " })).toEqual({
    url: "https://b.example",
    description: "",
    types: null,
  });
});
