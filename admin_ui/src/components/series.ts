/** Series of numbers over time as charts and their tables show them. Knows nothing of drawing. */

export interface Series {
  name: string;
  /** One for each of the times; null: nothing is known. */
  values: readonly (number | null)[];
  /** A CSS colour, variables included. */
  color: string;
}

/** Running sums over the series, for stacks: the first stays as it is. Unknown counts as 0. */
export function stacked(series: readonly Series[]): (number | null)[][] {
  const sums: (number | null)[][] = [];
  let below: readonly (number | null)[] | null = null;
  for (const { values } of series) {
    const floor: readonly (number | null)[] | null = below;
    const sum: (number | null)[] = values.map((value, index) =>
      floor === null ? value : (value ?? 0) + (floor[index] ?? 0),
    );
    sums.push(sum);
    below = sum;
  }
  return sums;
}

/** The index of the time nearest to `at`; -1 without times. */
export function nearest(times: readonly number[], at: number): number {
  let best = -1;
  times.forEach((time, index) => {
    if (best < 0 || Math.abs(time - at) < Math.abs((times[best] ?? 0) - at)) best = index;
  });
  return best;
}

/** Where a value is known and neither of its neighbours; null: nowhere. */
export function alone(values: ArrayLike<number | null | undefined>): number[] | null {
  const isKnown = (index: number) => values[index] !== null && values[index] !== undefined;
  const found = Array.from(values, (_, index) => index).filter(
    (index) => isKnown(index) && !isKnown(index - 1) && !isKnown(index + 1),
  );
  return found.length > 0 ? found : null;
}
