import { describe, expect, it } from "vitest";
import type { Schemas } from "./client";
import { credentialsOf, keyProblem, sessionOf } from "./session";

const TENANT: Schemas["SessionTenant"] = {
  id: "tenant_a",
  name: "Acme",
  status: "active",
  role: "viewer",
  scopes: [],
  reads: ["inference", "adapters", "usage"],
};

const VIEW: Schemas["SessionView"] = {
  object: "session",
  id: "session_1",
  type: "person",
  csrf_token: "csrf",
  person: { id: "person_1", email: "kim@example.com", email_verified: true, name: null },
  key: null,
  operator_role: null,
  tenants: [TENANT],
  created_at: "2026-11-23T00:00:00Z",
  expires_at: "2026-11-30T00:00:00Z",
};

describe("sessionOf", () => {
  it("opens to a viewer what may be seen, and no playground", () => {
    const session = sessionOf(VIEW, null);
    expect(session.who).toBe("kim@example.com");
    expect(session.place?.may).toEqual(["adapters", "usage"]);
    expect(credentialsOf(session)).toEqual({ csrf: "csrf", tenant: "tenant_a" });
  });

  it("goes to the place chosen before, if it is still theirs", () => {
    const view = { ...VIEW, operator_role: "billing" as const };
    expect(sessionOf(view, "operator").place?.role).toBe("admin");
    expect(sessionOf(view, "tenant_gone").place?.tenant).toBe("tenant_a");
  });

  it("knows somebody who belongs nowhere yet", () => {
    expect(sessionOf({ ...VIEW, tenants: [] }, null).place).toBeNull();
  });

  it("opens people to owners", () => {
    const owner = { ...TENANT, role: "owner" as const };
    expect(sessionOf({ ...VIEW, tenants: [owner] }, null).place?.may).toContain("people");
  });

  it("lets who pays the bills change what is about them, and nobody who only looks on", () => {
    const changes = (of: Partial<typeof TENANT>) =>
      sessionOf({ ...VIEW, tenants: [{ ...TENANT, ...of }] }, null).place?.changes;
    expect(changes({})).toEqual([]);
    expect(changes({ role: "billing", scopes: ["usage"] })).toEqual(["usage", "billing"]);
    expect(changes({ role: null, scopes: ["keys"] })).toEqual(["keys", "billing"]);
    expect(changes({ role: "developer", scopes: ["inference"] })).toEqual(["inference"]);
  });

  it("has nothing for a key that reads metrics", () => {
    const view = { ...VIEW, type: "admin_key" as const, operator_role: "metrics" as const };
    expect(() => sessionOf({ ...view, person: null, tenants: [] }, null)).toThrow(
      /only read metrics/,
    );
  });
});

describe("keyProblem", () => {
  it("says where a key has a letter that no key has", () => {
    expect(keyProblem("tn_abc_é")).toMatch(/“é” at position 8/);
    expect(keyProblem("tn_a bc")).toMatch(/a space at position 5/);
    expect(keyProblem("")).toMatch(/Enter an API key/);
    expect(keyProblem("tn_abcd1234_0123456789")).toBeNull();
  });

  it("shows of a key its prefix and no more", () => {
    const key = { id: "key_1", name: "ci", prefix: "abcd1234" };
    const session = sessionOf({ ...VIEW, type: "api_key", person: null, key }, null);
    expect([session.who, session.keyName]).toEqual(["tn_abcd1234…", "ci"]);
  });
});
