/**
 * Reads headers of safetensors files in the browser, and makes one file of several shards: a header
 * of its own before slices of theirs, of which not a byte is read until it is sent. The server's own
 * checks decide what an adapter is; this says nothing about that.
 */

/** The server takes headers of 1 MiB; more is read only to say what is wrong with it. */
const HEADER_BYTES_MAX = 4 * 1024 * 1024;
const LENGTH_BYTES = 8;

interface Tensor {
  name: string;
  dtype: string;
  shape: number[];
  begin: number;
  end: number;
}

/** What is sent as `adapter_model.safetensors`. */
export interface Weights {
  /** Its first bytes: the length of the header, and the header. */
  header: Blob;
  whole: Blob;
}

export class HeaderError extends Error {}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** How long the header with its length is. Throws HeaderError when it is no such file. */
export async function headerBytes(file: Blob, name: string): Promise<number> {
  if (file.size < LENGTH_BYTES)
    throw new HeaderError(`${name} is too short for a safetensors file. Save the adapter again.`);
  const prefix = new DataView(await file.slice(0, LENGTH_BYTES).arrayBuffer());
  const length = prefix.getBigUint64(0, true);
  if (length > BigInt(HEADER_BYTES_MAX) || length > BigInt(file.size - LENGTH_BYTES))
    throw new HeaderError(`${name} is not a safetensors file: its header length is not valid.`);
  return LENGTH_BYTES + Number(length);
}

async function tensorsOf(file: Blob, name: string, headerEnd: number): Promise<Tensor[]> {
  let header: unknown;
  try {
    header = JSON.parse(await file.slice(LENGTH_BYTES, headerEnd).text());
  } catch {
    throw new HeaderError(`${name} is not a safetensors file: its header is not JSON.`);
  }
  if (!isRecord(header)) throw new HeaderError(`The header of ${name} is not a JSON object.`);
  return Object.entries(header)
    .filter(([tensor]) => tensor !== "__metadata__")
    .map(([tensor, entry]) => tensorOf(tensor, entry));
}

function tensorOf(name: string, entry: unknown): Tensor {
  if (!isRecord(entry)) throw new HeaderError(`The header has no description of tensor "${name}".`);
  const { dtype, shape, data_offsets: offsets } = entry;
  const numbers = (value: unknown): value is number[] =>
    Array.isArray(value) && value.every((n) => Number.isSafeInteger(n) && n >= 0);
  if (typeof dtype !== "string" || !numbers(shape) || !numbers(offsets) || offsets.length !== 2)
    throw new HeaderError(`The header's description of tensor "${name}" is not valid.`);
  const [begin = 0, end = 0] = offsets;
  return { name, dtype, shape, begin, end };
}

/** One file as it is, or several as one. Throws HeaderError, which says what to do. */
export async function weightsOf(files: readonly File[]): Promise<Weights> {
  const [first] = files;
  if (files.length === 1 && first !== undefined) {
    const end = await headerBytes(first, first.name);
    return { header: first.slice(0, end), whole: first };
  }
  return merged(files);
}

async function merged(files: readonly File[]): Promise<Weights> {
  const entries = new Map<string, { dtype: string; shape: number[]; data_offsets: number[] }>();
  const pieces: Blob[] = [];
  let position = 0;
  for (const file of files) {
    const headerEnd = await headerBytes(file, file.name);
    for (const { name, dtype, shape, begin, end } of await tensorsOf(file, file.name, headerEnd)) {
      if (entries.has(name))
        throw new HeaderError(`Tensor "${name}" is in ${file.name} and also in an earlier file.`);
      entries.set(name, { dtype, shape, data_offsets: [position + begin, position + end] });
    }
    pieces.push(file.slice(headerEnd));
    position += file.size - headerEnd;
  }
  const header = withLength(JSON.stringify(Object.fromEntries(entries)));
  return { header, whole: new Blob([header, ...pieces]) };
}

/** The header's bytes behind their length, filled up to a multiple of eight as the format asks. */
function withLength(text: string): Blob {
  const bytes = new TextEncoder().encode(text);
  const padding = (8 - (bytes.length % 8)) % 8;
  const prefix = new DataView(new ArrayBuffer(LENGTH_BYTES));
  prefix.setBigUint64(0, BigInt(bytes.length + padding), true);
  return new Blob([prefix.buffer, bytes, " ".repeat(padding)]);
}
