/** What of a version's report is shown, and how strongly each cell of its picture is tinted. Pure. */

import type { Schemas } from "../../api/client";
import type { Adapter } from "../adapters/model";

export type Picture = Schemas["LayerPicture"];
export const MEASURES = ["product", "norm_a", "norm_b", "rank"] as const;
export type Measure = (typeof MEASURES)[number];

export const MEASURE_WORDS: Record<Measure, string> = {
  product: "Total update (scale x B x A)",
  norm_a: "Norm of A",
  norm_b: "Norm of B",
  rank: "Rank",
};

/** Rows by module, cells by layer: what was measured, and its part of the largest. */
export interface Row {
  module: string;
  cells: { layer: number; value: number | null; part: number }[];
}

export function rowsOf(picture: Picture, measure: Measure): Row[] {
  const values = picture[measure];
  const largest = Math.max(0, ...values.flat().map((value) => value ?? 0));
  return picture.modules.map((module, row) => ({
    module,
    cells: picture.layers.map((layer, column) => {
      const value = values[row]?.[column] ?? null;
      return { layer, value, part: value === null || largest === 0 ? 0 : value / largest };
    }),
  }));
}

/** The version whose report is shown: as asked, else what serves most, else the newest. */
export function shownVersion(adapter: Adapter, asked: string | null): number {
  const wanted = Number(asked);
  if (adapter.versions.some(({ version }) => version === wanted)) return wanted;
  return adapter.serving.versions[0]?.version ?? adapter.version;
}

/** Bounds of the divergence, nats: the largest of all samples and positions. */
export function largestKl(samples: readonly Schemas["Sample"][]): number {
  return Math.max(0, ...samples.flatMap(({ kl }) => kl));
}

/** Where the two answers begin to differ, so that the common start can be dimmed. */
export function commonStart(a: string, b: string): number {
  let at = 0;
  while (at < a.length && at < b.length && a[at] === b[at]) at += 1;
  return at;
}
