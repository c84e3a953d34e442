/**
 * Reads the header of a safetensors file in the browser, before a byte is sent, to say what an
 * adapter is: its ranks, modules and size. The server's own checks decide; this only foretells.
 */

/** The format's own limit is 100 MB; an adapter's header is a few hundred KB at most. */
const HEADER_BYTES_MAX = 4 * 1024 * 1024;

export interface TensorInfo {
  name: string;
  dtype: string;
  shape: number[];
  bytes: number;
}

export interface AdapterPreview {
  tensors: number;
  weightBytes: number;
  ranks: number[];
  modules: string[];
  dtypes: string[];
  layers: number;
}

export class HeaderError extends Error {}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function tensorInfo(name: string, entry: unknown): TensorInfo {
  if (!isRecord(entry)) throw new HeaderError(`Tensor "${name}" has no description.`);
  const { dtype, shape, data_offsets: offsets } = entry;
  const numbers = (value: unknown): value is number[] =>
    Array.isArray(value) && value.every((n) => Number.isSafeInteger(n) && n >= 0);
  if (typeof dtype !== "string" || !numbers(shape) || !numbers(offsets) || offsets.length !== 2)
    throw new HeaderError(`Tensor "${name}" is described wrongly.`);
  const [from = 0, to = 0] = offsets;
  return { name, dtype, shape, bytes: to - from };
}

/** The tensors a safetensors file says it holds. Throws HeaderError when it is not such a file. */
export async function readHeader(file: Blob): Promise<TensorInfo[]> {
  if (file.size < 8) throw new HeaderError("The file is too short to be a safetensors file.");
  const prefix = new DataView(await file.slice(0, 8).arrayBuffer());
  const length = prefix.getBigUint64(0, true);
  if (length > BigInt(HEADER_BYTES_MAX) || length > BigInt(file.size - 8))
    throw new HeaderError("This is not a safetensors file: its header length makes no sense.");
  const text = await file.slice(8, 8 + Number(length)).text();
  let header: unknown;
  try {
    header = JSON.parse(text);
  } catch {
    throw new HeaderError("This is not a safetensors file: its header is not JSON.");
  }
  if (!isRecord(header)) throw new HeaderError("The header of this file is not a JSON object.");
  return Object.entries(header)
    .filter(([name]) => name !== "__metadata__")
    .map(([name, entry]) => tensorInfo(name, entry));
}

const LORA_A = /(?:^|\.)layers\.(\d+)\.(?:.*\.)?([a-z0-9_]+)\.lora_A\.(?:[^.]+\.)?weight$/i;

/** What the tensors say about the adapter, by PEFT's names. */
export function previewAdapter(tensors: TensorInfo[]): AdapterPreview {
  const ranks = new Set<number>();
  const modules = new Set<string>();
  const layers = new Set<string>();
  for (const { name, shape } of tensors) {
    const match = LORA_A.exec(name);
    if (!match) continue;
    const [, layer = "", module = ""] = match;
    layers.add(layer);
    modules.add(module);
    if (shape[0] !== undefined) ranks.add(shape[0]);
  }
  return {
    tensors: tensors.length,
    weightBytes: tensors.reduce((sum, tensor) => sum + tensor.bytes, 0),
    ranks: [...ranks].sort((a, b) => a - b),
    modules: [...modules].sort(),
    dtypes: [...new Set(tensors.map((tensor) => tensor.dtype))].sort(),
    layers: layers.size,
  };
}
