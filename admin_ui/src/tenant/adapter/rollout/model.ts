/** Weights of an alias, stages of a roll-out and what its guard compares. Pure. */

import type { Schemas } from "../../../api/client";

export type Target = Schemas["AliasTarget"];
export type Rollout = Schemas["Rollout"];
export type Change = Schemas["AliasChange"];

export const WHOLE = 100;

/**
 * The targets with `version` at `weight`: the others keep their proportions to each other, in whole percents, and all
 * add up to 100. A version that is not among them joins; one at 0 stays, so that a slider can take it up again.
 */
export function reweigh(targets: readonly Target[], version: number, weight: number): Target[] {
  const wanted = Math.min(Math.max(Math.round(weight), 0), WHOLE);
  const others = targets.filter((target) => target.version !== version);
  if (others.length === 0) return [{ version, weight: WHOLE }];
  const before = others.reduce((sum, target) => sum + target.weight, 0);
  const rest = WHOLE - wanted;
  const exact = others.map((target) =>
    before === 0 ? rest / others.length : (target.weight / before) * rest,
  );
  const shares = exact.map(Math.floor);
  // Whole percents that rounding has left go to the largest remainders (Hamilton's method).
  const order = exact
    .map((share, index) => ({ index, left: share - Math.floor(share) }))
    .sort((a, b) => b.left - a.left || a.index - b.index);
  let missing = rest - shares.reduce((sum, share) => sum + share, 0);
  for (const { index } of order) {
    if (missing <= 0) break;
    shares[index] = (shares[index] ?? 0) + 1;
    missing -= 1;
  }
  const next = others.map((target, index) => ({ ...target, weight: shares[index] ?? 0 }));
  return [...next, { version, weight: wanted }].sort((a, b) => a.version - b.version);
}

/** What can be sent: versions with something to do. */
export function sendable(targets: readonly Target[]): Target[] {
  return targets.filter(({ weight }) => weight > 0);
}

export function sameTargets(a: readonly Target[], b: readonly Target[]): boolean {
  const text = (targets: readonly Target[]) =>
    sendable(targets)
      .map(({ version, weight }) => `${version}:${weight}`)
      .sort()
      .join();
  return text(a) === text(b);
}

/** "v2 75%, v3 25%" */
export function targetsText(targets: readonly Target[] | undefined | null): string {
  if (!targets || targets.length === 0) return "none";
  return [...targets]
    .sort((a, b) => b.weight - a.weight)
    .map(({ version, weight }) => `v${version} ${weight}%`)
    .join(", ");
}

/** When a stage is over, in words. */
export function stageText(stage: Schemas["Stage"]): string {
  const parts: string[] = [];
  if (stage.after_s !== null && stage.after_s !== undefined)
    parts.push(durationText(stage.after_s));
  if (stage.after_requests !== null && stage.after_requests !== undefined)
    parts.push(`${stage.after_requests} requests`);
  return parts.length === 0 ? "observed for one minute" : parts.join(" and ");
}

export function durationText(seconds: number): string {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7_200) return `${Math.round(seconds / 60)} min`;
  return `${Math.round(seconds / 3_600)} h`;
}

export interface GuardLine {
  what: string;
  version: string;
  before: string;
  limit: string;
  isBeyond: boolean;
}

const percent = (part: number) => `${(part * 100).toFixed(1)}%`;
const ms = (value: number | null) => (value === null ? "–" : `${Math.round(value)} ms`);

/** Each guard rail with both sides' numbers. Whether it is judged yet is not said here. */
export function guardLines({ guard, numbers }: Rollout): GuardLine[] {
  if (numbers === null) return [];
  const { version, before } = numbers;
  const lines: GuardLine[] = [];
  if (guard.error_rate !== null && guard.error_rate !== undefined) {
    const limit = before.error_rate + guard.error_rate;
    lines.push({
      what: "Errors",
      version: percent(version.error_rate),
      before: percent(before.error_rate),
      limit: percent(Math.min(limit, 1)),
      isBeyond: version.error_rate > limit,
    });
  }
  if (guard.ttft_ratio !== null && guard.ttft_ratio !== undefined) {
    const limit = before.ttft_ms === null ? null : before.ttft_ms * guard.ttft_ratio;
    lines.push({
      what: "TTFT, median",
      version: ms(version.ttft_ms),
      before: ms(before.ttft_ms),
      limit: ms(limit),
      isBeyond: limit !== null && version.ttft_ms !== null && version.ttft_ms > limit,
    });
  }
  return lines;
}

const ACTIONS: Record<Change["action"], string> = {
  put: "set",
  delete: "deleted",
  rollback: "rolled back",
  "rollout.begin": "rollout started",
  "rollout.advance": "rollout advanced",
  "rollout.roll_back": "rolled back automatically",
  "rollout.cancel": "rollout cancelled",
};

export function actionText(action: Change["action"]): string {
  return ACTIONS[action];
}

/** The usual stages to a version: a look, a part, all. */
export function presetStages(unit: "time" | "requests"): Schemas["Stage"][] {
  return [5, 25, 50, 100].map((each) =>
    unit === "time" ? { percent: each, after_s: 600 } : { percent: each, after_requests: 200 },
  );
}

export interface VersionSeries {
  version: number | null;
  requests: (number | null)[];
  /** The part that ended by an error; null without requests. */
  failed: (number | null)[];
  ttftMs: (number | null)[];
}

/** What `/v1/timeseries` tells by version, gathered for each version in order. */
export function versionSeries(series: readonly Schemas["TimeSeries"][]): VersionSeries[] {
  const numbers = new Set(series.map(({ version }) => version ?? null));
  return [...numbers]
    .sort((a, b) => (a ?? 0) - (b ?? 0))
    .map((version) => {
      const find = (metric: string, kind: string | null) =>
        series.find(
          (each) =>
            (each.version ?? null) === version &&
            each.metric === metric &&
            (each.kind ?? null) === kind,
        )?.values ?? [];
      const requests = find("finished", null);
      const errors = find("ended", "error");
      return {
        version,
        requests,
        failed: requests.map((count, at) => (count ? (errors[at] ?? 0) / count : null)),
        ttftMs: find("ttft", "p50"),
      };
    });
}
