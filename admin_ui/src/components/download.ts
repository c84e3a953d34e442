/** Saves what the server sent, or what a page made, as a file. */

export function save(content: Blob, name: string): void {
  const url = URL.createObjectURL(content);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** The name that the answer gives its file, or `otherwise`. */
export function fileName(response: Response, otherwise: string): string {
  const said = response.headers.get("content-disposition") ?? "";
  return /filename="([^"]+)"/.exec(said)?.[1] ?? otherwise;
}

/** Comma-separated values as RFC 4180 has them; what a spreadsheet would take for a formula is quoted. */
export function csv(rows: readonly (readonly (string | number | null)[])[]): string {
  return rows
    .map((row) => row.map(field).join(","))
    .join("\r\n")
    .concat("\r\n");
}

function field(value: string | number | null): string {
  if (value === null) return "";
  if (typeof value === "number") return String(value);
  const safe = /^[=+@\t\r]|^-(?!\d)/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
