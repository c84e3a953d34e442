/** White text on each has a contrast of 4.5 or more, in both themes. */
const HUES = [
  "#176a61",
  "#3b5bdb",
  "#9c36b5",
  "#a33b12",
  "#2b6e2f",
  "#7a4f01",
  "#0b6a8f",
  "#a61e4d",
];

/** The same version has the same colour everywhere. */
export function versionColor(version: number): string {
  return HUES[(version - 1) % HUES.length] ?? "#176a61";
}
