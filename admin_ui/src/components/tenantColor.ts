/** A tenant's colour: by its id alone, so that it is the same on every page and at every time. */

export const HUES = 10;
export const GREY = HUES;

/** 0 to 9; several tenants may have one, so names stand beside colours. */
export function hueOf(id: string): number {
  let hash = 0x811c9dc5; // FNV-1a
  for (let at = 0; at < id.length; at += 1)
    hash = Math.imul(hash ^ id.charCodeAt(at), 0x01000193) >>> 0;
  return hash % HUES;
}

export function tenantColor(id: string | null): string {
  return `var(--tenora-hue-${id === null ? GREY : hueOf(id)})`;
}
