/** Where an adapter's pages are. */

export function adapterPath(name: string, tab = ""): string {
  return `/adapters/${encodeURIComponent(name)}${tab && `/${tab}`}`;
}

export function reportPath(name: string, version: number | null): string {
  return `${adapterPath(name, "report")}${version === null ? "" : `?version=${version}`}`;
}
