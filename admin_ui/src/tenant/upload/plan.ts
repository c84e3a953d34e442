/** How a file is cut into parts, and what is remembered of an upload over a reload. Pure. */

const MIB = 1024 * 1024;
/** Enough parts that a reload loses little, few enough that each is worth its request. */
const PARTS_WANTED = 32;

export function partBytesFor(bytes: number, partBytesMax: number): number {
  const even = Math.ceil(bytes / PARTS_WANTED / MIB) * MIB;
  return Math.min(Math.max(even, MIB), 16 * MIB, partBytesMax);
}

export interface Part {
  index: number;
  begin: number;
  end: number;
}

export function partsOf(bytes: number, partBytes: number): Part[] {
  const count = Math.max(Math.ceil(bytes / partBytes), 1);
  return Array.from({ length: count }, (_, index) => ({
    index,
    begin: index * partBytes,
    end: Math.min((index + 1) * partBytes, bytes),
  }));
}

/** What a folder has to be to go on with an upload: the same files, as far as names and sizes say. */
export interface Identity {
  bytes: number;
  headerBytes: number;
  /** Of config and header, so that another adapter of the same size is told apart. */
  mark: string;
}

/** FNV-1a over 32 bits: to tell apart what a person may confuse, not what somebody forges. */
export function markOf(bytes: Uint8Array): string {
  let hash = 0x811c9dc5;
  for (const byte of bytes) hash = Math.imul(hash ^ byte, 0x01000193) >>> 0;
  return hash.toString(16).padStart(8, "0");
}

/** One upload as the browser's storage keeps it: no contents, no secrets. */
export interface Remembered {
  id: string;
  /** Whose: a tenant's id, or "" of a key's own. */
  place: string;
  /** Which tab has it, so that a second one does not take it for interrupted. */
  tab: string;
  seenAt: number;
  name: string;
  folder: string;
  identity: Identity;
  partBytes: number;
  uploadId: string | null;
  /** Ids that the server gave, by index. */
  parts: Record<number, string>;
  /** Once the weights are there and it is a version. */
  version: number | null;
}

export function isSame(a: Identity, b: Identity): boolean {
  return a.bytes === b.bytes && a.headerBytes === b.headerBytes && a.mark === b.mark;
}

/** Bytes that the server has. */
export function receivedBytes({ identity, partBytes, parts }: Remembered): number {
  return partsOf(identity.bytes, partBytes)
    .filter(({ index }) => parts[index] !== undefined)
    .reduce((sum, { begin, end }) => sum + end - begin, 0);
}

/** Silent for so long, another tab's upload is nobody's. */
const ABANDONED_MS = 15_000;

export function isMine(of: Remembered, place: string, tab: string, now: number): boolean {
  return of.place === place && (of.tab === tab || now - of.seenAt > ABANDONED_MS);
}

const isText = (value: unknown): value is string => typeof value === "string";
const isNumber = (value: unknown): value is number => typeof value === "number";

/** What storage holds may be of another version of this portal: such entries are passed over. */
export function readRemembered(text: string | null): Remembered[] {
  let found: unknown;
  try {
    found = JSON.parse(text ?? "[]");
  } catch {
    return [];
  }
  return Array.isArray(found) ? found.filter(isRemembered) : [];
}

function isRemembered(value: unknown): value is Remembered {
  if (typeof value !== "object" || value === null) return false;
  const { id, place, tab, seenAt, name, folder, identity, partBytes, parts } =
    value as Partial<Remembered>;
  return (
    [id, place, tab, name, folder].every(isText) &&
    [seenAt, partBytes, identity?.bytes, identity?.headerBytes].every(isNumber) &&
    isText(identity?.mark) &&
    typeof parts === "object" &&
    parts !== null
  );
}
