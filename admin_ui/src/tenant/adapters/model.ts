/** What an adapter is to the eye: what serves, what waits, what failed. Pure. */

import type { Schemas } from "../../api/client";

export type Adapter = Schemas["Adapter"];
export type AdapterVersion = Schemas["AdapterVersion"];
export type VersionState = AdapterVersion["state"];
export type Tier = NonNullable<AdapterVersion["residency"]>;

export function isPending(state: VersionState): boolean {
  return state === "quarantined" || state === "validating";
}

/** Versions newer than what serves, of which a person should know: they wait, or were rejected. */
export function notServing(adapter: Adapter): AdapterVersion[] {
  const newest = Math.max(0, ...adapter.serving.versions.map(({ version }) => version));
  return adapter.versions.filter(
    ({ version, state }) => version > newest && (isPending(state) || state === "rejected"),
  );
}

/** In a word, and in the colour of a badge. */
export function standing(adapter: Adapter): { word: string; color: string } {
  if (adapter.serving.versions.length > 0) {
    const all = adapter.serving.versions;
    return all.every(({ state }) => state === "deprecated")
      ? { word: "deprecated", color: "yellow" }
      : { word: "serving", color: "teal" };
  }
  if (adapter.versions.some(({ state }) => isPending(state)))
    return { word: "being checked", color: "blue" };
  if (adapter.state === "rejected") return { word: "rejected", color: "red" };
  return { word: "not serving", color: "gray" };
}

/** `v2`, or `v1 70 %, v3 30 %`. */
export function servesText({ serving }: Adapter): string {
  const [first] = serving.versions;
  if (first === undefined) return "no version";
  if (serving.versions.length === 1) return `v${first.version}`;
  return serving.versions.map(({ version, weight }) => `v${version} ${weight} %`).join(", ");
}

/** The alias that a bare name means, once somebody has set it. */
export const DEFAULT_ALIAS = "prod";

export const hasDefaultAlias = ({ aliases }: Adapter): boolean =>
  aliases.some(({ alias }) => alias === DEFAULT_ALIAS);

/**
 * Which version takes all requests of the bare name once `version` is in `state` (null: deleted); null:
 * none does, or what it means does not change by that.
 */
export function takesOver(
  adapter: Adapter,
  version: number,
  state: VersionState | null,
): number | null {
  if (hasDefaultAlias(adapter)) return null;
  const newest = (versions: readonly AdapterVersion[]) =>
    Math.max(0, ...versions.filter((each) => each.state === "active").map((each) => each.version));
  const after = adapter.versions
    .filter((each) => state !== null || each.version !== version)
    .map((each) => (each.version === version && state !== null ? { ...each, state } : each));
  const next = newest(after);
  return next === newest(adapter.versions) || next === 0 ? null : next;
}

const TIERS: readonly Tier[] = ["device", "host", "shared", "store"];

/** The slowest tier that a request may have to wait for. */
export function tierOf({ serving }: Adapter): Tier | null {
  const tiers = serving.versions.flatMap(({ residency }) => (residency ? [residency] : []));
  return tiers.reduce<Tier | null>(
    (worst, tier) => (worst === null || TIERS.indexOf(tier) > TIERS.indexOf(worst) ? tier : worst),
    null,
  );
}

export interface ProblemGroup {
  code: string;
  message: string;
  /** Where: at most a few, the rest are `more`. */
  fields: string[];
  more: number;
}

const FIELDS_SHOWN = 3;
const MORE = "more_problems";

/** What is wrong in the same way is said once, however many tensors it concerns. */
export function grouped(problems: readonly Schemas["Problem"][]): ProblemGroup[] {
  const alike = Map.groupBy(
    problems.filter(({ code }) => code !== MORE),
    ({ code, message }) => `${code} ${message.replaceAll(/\d+/g, "#")}`,
  );
  const groups = [...alike.values()].map((same) => ({
    code: same[0]?.code ?? "",
    message: same[0]?.message ?? "",
    fields: same.slice(0, FIELDS_SHOWN).map(({ field }) => field),
    more: Math.max(same.length - FIELDS_SHOWN, 0),
  }));
  const rest = problems.find(({ code }) => code === MORE);
  if (rest) groups.push({ code: MORE, message: rest.message, fields: [rest.field], more: 0 });
  return groups;
}
