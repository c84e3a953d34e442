import { expect, test } from "vitest";
import { bodyOf, changesOf, faultsIn, fieldsOf, NEW_PLAN, type Plan } from "./model";

const PLAN: Plan = {
  object: "plan",
  name: "gold",
  sla_class: "priority",
  tiers: ["priority", "flex"],
  ttft_ms: 250,
  tpot_ms: null,
  late: "relegate",
  weight: 2,
  memory_share: 0.07,
  stored_responses: true,
  limits: {
    requests_per_min: 600,
    tokens_per_min: null,
    parallel_requests: 8,
    adapters: null,
    adapter_bytes: 5_000_000_000,
    budget: "12.500000000000",
    budget_day: null,
    budget_soft: 0.8,
    budget_action: "degrade",
  },
};

test("a plan goes through the form and comes out as it was", () => {
  const { object: _, name, ...body } = PLAN;
  const fields = fieldsOf(PLAN);
  expect(fields).toMatchObject({ name, memory_share: "7", budget_soft: "80", budget: "12.5" });
  expect(bodyOf(fields)).toEqual({ ...body, limits: { ...body.limits, budget: "12.5" } });
});

test("a change is told field by field, with what there was", () => {
  const before = fieldsOf(PLAN);
  const after = { ...before, requests_per_min: "60", budget: "", sla_class: "default" as const };
  expect(changesOf(before, after)).toEqual([
    { label: "Service class", from: "priority", to: "default" },
    { label: "Requests per minute", from: "600", to: "60" },
    { label: "Monthly budget", from: "12.5", to: "no budget" },
  ]);
  expect(changesOf(before, before)).toEqual([]);
});

test("what cannot be sent is said before", () => {
  expect(faultsIn({ ...NEW_PLAN, name: "gold" })).toEqual({});
  const faults = faultsIn({
    ...NEW_PLAN,
    name: "Gold!",
    adapters: "1.5",
    budget: "1,000",
    weight: "",
  });
  expect(Object.keys(faults).sort()).toEqual(["adapters", "budget", "name", "weight"]);
  for (const weight of ["0", "0.009", "100.1", "-1"])
    expect(faultsIn({ ...NEW_PLAN, name: "gold", weight })).toEqual({
      weight: "Enter a number from 0.01 to 100",
    });
  for (const weight of ["0.01", "100"])
    expect(faultsIn({ ...NEW_PLAN, name: "gold", weight })).toEqual({});
});
