/** The items of an evaluation as somebody pastes them, and scores as they are written. Pure. */

import type { Schemas } from "../../api/client";

export type Evaluation = Schemas["Evaluation"];
export type Scoring = Evaluation["scoring"];

export interface ScoringKind {
  value: Scoring;
  label: string;
  /** What an item needs beside its prompt. */
  needs: string;
  example: string;
}

export const SCORINGS: readonly ScoringKind[] = [
  {
    value: "exact",
    label: "Exact",
    needs: "expected",
    example: '{"prompt": "2 + 2 =", "expected": "4"}',
  },
  {
    value: "contains",
    label: "Contains",
    needs: "expected",
    example:
      '{"messages": [{"role": "user", "content": "Where is my parcel?"}], "expected": "tracking"}',
  },
  {
    value: "choice",
    label: "Choice",
    needs: "choices and expected",
    example: '{"prompt": "The sky is", "choices": [" blue", " green"], "expected": " blue"}',
  },
  {
    value: "json_schema",
    label: "JSON schema",
    needs: "schema",
    example: '{"prompt": "A person as JSON:", "schema": {"type": "object"}}',
  },
  {
    value: "loglikelihood",
    label: "Log-likelihood",
    needs: "expected",
    example: '{"prompt": "Paris is the capital of", "expected": " France"}',
  },
];

export interface ReadItems {
  count: number;
  /** What is wrong with the first line that is; null: nothing. */
  problem: string | null;
}

export const ITEMS_MAX = 1_000;

/** A look before anything is sent; the server's word is the last. */
export function readItems(text: string, scoring: Scoring): ReadItems {
  let count = 0;
  const lines = text.split("\n");
  for (const [index, line] of lines.entries()) {
    if (line.trim() === "") continue;
    const problem = problemOf(line, scoring);
    if (problem !== null) return { count, problem: `Line ${index + 1} ${problem}` };
    count += 1;
  }
  if (count > ITEMS_MAX)
    return {
      count,
      problem: `There are ${count} lines. One evaluation can have at most ${ITEMS_MAX} items.`,
    };
  return { count, problem: null };
}

/** The lines as they are sent. Throws SyntaxError where one is no JSON. */
export function parseItems(text: string): Schemas["EvaluationCreate"]["items"] {
  return text
    .split("\n")
    .filter((line) => line.trim() !== "")
    .map((line) => JSON.parse(line) as Schemas["EvaluationCreate"]["items"][number]);
}

function problemOf(line: string, scoring: Scoring): string | null {
  let item: unknown;
  try {
    item = JSON.parse(line);
  } catch {
    return "is not JSON.";
  }
  if (typeof item !== "object" || item === null || Array.isArray(item))
    return "is not a JSON object.";
  if (!("prompt" in item) && !("messages" in item)) return 'has neither "prompt" nor "messages".';
  if (["exact", "contains", "choice", "loglikelihood"].includes(scoring) && !("expected" in item))
    return `has no "expected", which ${scoring} needs.`;
  if (scoring === "choice" && !("choices" in item)) return 'has no "choices".';
  return null;
}

/** A share as percent, a log-likelihood as it is; a dash where nothing was scored. */
export function scoreText(scoring: Scoring, score: number | null): string {
  if (score === null) return "–";
  return scoring === "loglikelihood" ? score.toFixed(3) : `${(score * 100).toFixed(1)}%`;
}

export function intervalText(scoring: Scoring, low: number | null, high: number | null): string {
  if (low === null || high === null) return "";
  return `${scoreText(scoring, low)} to ${scoreText(scoring, high)}`;
}

/** Whether two results are further apart than their intervals: then one is really better. */
export function areApart(
  a: { low: number | null; high: number | null },
  b: { low: number | null; high: number | null },
): boolean {
  if (a.low === null || a.high === null || b.low === null || b.high === null) return false;
  return a.low > b.high || b.low > a.high;
}

export function subjectName(version: number | "base"): string {
  return version === "base" ? "Base model" : `Version ${version}`;
}
