import { describe, expect, it } from "vitest";
import type { Schemas } from "../../api/client";
import {
  type Adapter,
  type AdapterVersion,
  grouped,
  notServing,
  servesText,
  standing,
  type Tier,
  takesOver,
  tierOf,
  type VersionState,
} from "./model";

type Alias = Schemas["Alias"];

function version(number: number, state: VersionState): AdapterVersion {
  return {
    id: `adv_${number}`,
    object: "adapter_version",
    adapter_id: "adp",
    name: "a",
    version: number,
    state,
    digest: null,
    rank: null,
    target_modules: null,
    bytes: 1,
    has_chat_template: false,
    validation: null,
    residency: null,
    created_at: "2026-01-01T00:00:00Z",
    activated_at: null,
    deprecated_at: null,
  };
}

/** `states` from version 1 on; `serving` is version -> [weight, tier]. */
function adapter(states: VersionState[], serving: Record<number, [number, Tier]>): Adapter {
  const versions = states.map((state, at) => version(at + 1, state)).reverse();
  const newest = versions[0] ?? version(1, "revoked");
  return {
    ...newest,
    object: "adapter",
    aliases: [],
    versions,
    traffic: null,
    month_costs: null,
    serving: {
      alias: null,
      versions: Object.entries(serving).map(([number, [weight, residency]]) => ({
        version: Number(number),
        weight,
        state: states[Number(number) - 1] ?? "active",
        digest: null,
        rank: 8,
        bytes: 1,
        residency,
      })),
    },
  };
}

describe("what takes over", () => {
  const two = adapter(["active", "active"], { 2: [100, "device"] });
  it("is the version before, once the newest is gone", () => {
    expect(takesOver(two, 2, null)).toBe(1);
    expect(takesOver(two, 2, "deprecated")).toBe(1);
    expect(takesOver(two, 1, null)).toBeNull();
    expect(takesOver(adapter(["active"], {}), 1, null)).toBeNull();
  });

  it("is a newer version that is reinstated", () => {
    expect(takesOver(adapter(["active", "deprecated"], {}), 2, "active")).toBe(2);
  });

  it("is nobody where an alias says what the name means", () => {
    const alias = { alias: "prod", targets: [], shadow: null } as unknown as Alias;
    expect(takesOver({ ...two, aliases: [alias] }, 2, null)).toBeNull();
  });
});

describe("an adapter", () => {
  it("serves, whatever became of a later upload", () => {
    const mixed = adapter(["active", "active", "rejected"], { 2: [100, "device"] });
    expect(standing(mixed).word).toBe("serving");
    expect(servesText(mixed)).toBe("v2");
    expect(notServing(mixed).map(({ version }) => version)).toEqual([3]);
  });

  it("says what it is where nothing serves", () => {
    expect(standing(adapter(["rejected"], {})).word).toBe("rejected");
    expect(standing(adapter(["rejected", "validating"], {})).word).toBe("being checked");
    expect(standing(adapter(["revoked"], {})).word).toBe("not serving");
    expect(standing(adapter(["deprecated"], { 1: [100, "host"] })).word).toBe("deprecated");
    expect(servesText(adapter(["revoked"], {}))).toBe("no version");
  });

  it("shows weights and the slowest tier of a split", () => {
    const split = adapter(["active", "active"], { 1: [70, "device"], 2: [30, "store"] });
    expect(servesText(split)).toBe("v1 70 %, v2 30 %");
    expect(tierOf(split)).toBe("store");
    expect(tierOf(adapter(["revoked"], {}))).toBeNull();
  });
});

describe("grouped", () => {
  it("says one mismatch once, whatever its numbers", () => {
    const problems = Array.from({ length: 5 }, (_, at) => ({
      field: `layers.${at}.q_proj`,
      code: "shape_mismatch",
      message: `has rank ${at}, the config asks for 9`,
    }));
    const other = { field: "adapter_config.bias", code: "unsupported_bias", message: "no" };
    const rest = { field: "weights", code: "more_problems", message: "and 7 problems more" };
    const found = grouped([...problems, other, rest]);
    expect(found.map(({ code, more }) => [code, more])).toEqual([
      ["shape_mismatch", 2],
      ["unsupported_bias", 0],
      ["more_problems", 0],
    ]);
    expect(found[0]?.fields).toEqual(["layers.0.q_proj", "layers.1.q_proj", "layers.2.q_proj"]);
  });
});
