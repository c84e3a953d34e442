/**
 * Finds the adapters in what was dropped or chosen: a folder with a config and weights each, be it the
 * root or a checkpoint below it. Knows names of files, and what trainers leave beside them.
 */

import { HeaderError, headerBytes, type Weights, weightsOf } from "./safetensors";

export const CONFIG_NAME = "adapter_config.json";
export const WEIGHTS_NAME = "adapter_model.safetensors";
const INDEX_NAME = `${WEIGHTS_NAME}.index.json`;
const TEMPLATE_NAME = "chat_template.jinja";
const DRAFT_LAYER_NAME = "draft_layer.safetensors";
const TOKENIZER_CONFIG = "tokenizer_config.json";
const CONFIG_BYTES_MAX = 256 * 1024;

/** A file with its path below what was chosen, `/` between the names. */
export interface Entry {
  path: string;
  file: File;
}

/** One folder with a config: it may be sent, or `problem` says why not. */
export interface Candidate {
  /** "" is the root. */
  folder: string;
  /** Of `checkpoint-<step>`. */
  step: number | null;
  config: File;
  weights: File[];
  template: File | null;
  tokenizerConfig: File | null;
  /** Trained to foretell the adapter's tokens. */
  draftLayer: File | null;
  problem: string | null;
}

/** Where a file lay, as far as the browser says; dropped and chosen ones differ. */
function pathOf(file: File): string {
  const path = "path" in file && typeof file.path === "string" ? file.path : "";
  return (path || file.webkitRelativePath || file.name).replace(/^\.?\//, "");
}

export function entriesOf(files: readonly File[]): Entry[] {
  return files.map((file) => ({ path: pathOf(file), file }));
}

function folderOf(path: string): string {
  return path.slice(0, Math.max(path.lastIndexOf("/"), 0));
}

/** A folder's name makes a good first name for the adapter; that of a checkpoint does not. */
export function suggestName(folder: string): string {
  const names = folder.split("/").filter((name) => name !== "" && stepOf(name) === null);
  return (names.at(-1) ?? "")
    .replace(/[^A-Za-z0-9._-]+/g, "-")
    .replace(/^[^A-Za-z0-9]+/, "")
    .slice(0, 63);
}

function stepOf(folder: string): number | null {
  const match = /(?:^|\/)checkpoint-(\d+)$/.exec(folder);
  return match ? Number(match[1]) : null;
}

/** The adapters there are: the folder's own first, then its checkpoints, the last step first. */
export async function candidatesIn(entries: readonly Entry[]): Promise<Candidate[]> {
  const folders = Map.groupBy(entries, ({ path }) => folderOf(path));
  const found: Candidate[] = [];
  for (const [folder, inside] of folders) {
    const files = new Map(
      inside.map(({ path, file }) => [path.slice(path.lastIndexOf("/") + 1), file]),
    );
    const config = files.get(CONFIG_NAME);
    if (config !== undefined) found.push(await candidate(folder, config, files));
  }
  const depth = ({ folder }: Candidate) => (folder === "" ? 0 : folder.split("/").length);
  return found.sort(
    (a, b) =>
      Number(a.problem !== null) - Number(b.problem !== null) ||
      depth(a) - depth(b) ||
      (b.step ?? 0) - (a.step ?? 0) ||
      a.folder.localeCompare(b.folder),
  );
}

async function candidate(
  folder: string,
  config: File,
  files: ReadonlyMap<string, File>,
): Promise<Candidate> {
  const found = {
    folder,
    step: stepOf(folder),
    config,
    template: files.get(TEMPLATE_NAME) ?? null,
    tokenizerConfig: files.get(TOKENIZER_CONFIG) ?? null,
    draftLayer: files.get(DRAFT_LAYER_NAME) ?? null,
  };
  try {
    return { ...found, weights: await weightsIn(files), problem: null };
  } catch (error) {
    if (!(error instanceof HeaderError)) throw error;
    return { ...found, weights: [], problem: error.message };
  }
}

async function weightsIn(files: ReadonlyMap<string, File>): Promise<File[]> {
  const whole = files.get(WEIGHTS_NAME);
  if (whole !== undefined) return [whole];
  const index = files.get(INDEX_NAME);
  if (index === undefined) throw new HeaderError(`${WEIGHTS_NAME} is missing. ${instead(files)}`);
  return (await shardsOf(index)).map((name) => {
    const shard = files.get(name);
    if (shard === undefined)
      throw new HeaderError(
        `${INDEX_NAME} lists ${name}, but this file is missing. Add it to the folder.`,
      );
    return shard;
  });
}

async function shardsOf(index: File): Promise<string[]> {
  const parsed = await jsonOf(index, 4 * 1024 * 1024);
  const places = parsed.weight_map;
  const names =
    typeof places === "object" && places !== null
      ? Object.values(places).filter((name) => typeof name === "string")
      : [];
  if (names.length === 0)
    throw new HeaderError(
      `${INDEX_NAME} lists no files. Save the adapter again with save_pretrained.`,
    );
  return [...new Set(names)].sort();
}

/** What there is in place of weights, and what to do about it. */
function instead(files: ReadonlyMap<string, File>): string {
  const names = [...files.keys()];
  const has = (pattern: RegExp) => names.find((name) => pattern.test(name));
  const pickle = has(/\.(bin|pt|pth|ckpt)$/);
  if (pickle)
    return `${pickle} is a pickle file. Pickle files are not accepted because they can contain code. Save the adapter again with save_pretrained(..., safe_serialization=True).`;
  if (has(/\.gguf$/)) return "Upload the PEFT folder that the GGUF file was created from.";
  if (has(/^adapters\.safetensors$/))
    return "This folder has MLX format. Upload it with `tenora adapter push`, which converts it.";
  const other = has(/\.safetensors$/);
  if (other) return `If ${other} contains the adapter's weights, rename it.`;
  return `An adapter folder needs ${CONFIG_NAME} and ${WEIGHTS_NAME}, as saved by PEFT.`;
}

/** Why nothing of it can be sent, where no folder has a config. */
export function nothingFound(entries: readonly Entry[]): string {
  const files = new Map(entries.map(({ file }) => [file.name, file]));
  if (entries.length === 0) return "The folder is empty. Choose the folder that PEFT saved.";
  if ([...files.keys()].some((name) => /\.(safetensors|bin|gguf)$/.test(name)))
    return `This folder has weights but no ${CONFIG_NAME}. Choose the complete folder that save_pretrained wrote.`;
  return `This folder has no adapter. Choose a folder with ${CONFIG_NAME} and ${WEIGHTS_NAME}, as saved by PEFT.`;
}

async function jsonOf(file: File, bytesMax: number): Promise<Record<string, unknown>> {
  if (file.size > bytesMax)
    throw new HeaderError(
      `${file.name} is too large: it has ${file.size} bytes, and at most ${bytesMax} are allowed.`,
    );
  try {
    const value: unknown = JSON.parse(await file.text());
    if (typeof value === "object" && value !== null && !Array.isArray(value))
      return value as Record<string, unknown>;
  } catch {
    // Said below, with the name of the file.
  }
  throw new HeaderError(`${file.name} is not a JSON object.`);
}

/** What will be sent. Throws HeaderError, which says why it cannot be. */
export interface Parcel {
  config: Blob;
  template: string | null;
  weights: Weights;
  draftLayer: Weights | null;
  /** What the config alone gives away, before the server is asked. */
  doubts: string[];
}

export async function pack(of: Candidate): Promise<Parcel> {
  if (of.problem !== null) throw new HeaderError(of.problem);
  const config = await jsonOf(of.config, CONFIG_BYTES_MAX);
  return {
    config: of.config,
    template: await templateOf(of),
    weights: await weightsOf(of.weights),
    draftLayer: of.draftLayer === null ? null : await draftLayerOf(of.draftLayer),
    doubts: doubtsAbout(config),
  };
}

async function draftLayerOf(file: File): Promise<Weights> {
  return { header: file.slice(0, await headerBytes(file, DRAFT_LAYER_NAME)), whole: file };
}

/** From where transformers looks: the file, else the tokenizer's config ("default" of several). */
async function templateOf({ template, tokenizerConfig }: Candidate): Promise<string | null> {
  if (template !== null) return (await template.text()) || null;
  if (tokenizerConfig === null || tokenizerConfig.size > 4 * 1024 * 1024) return null;
  let found: unknown;
  try {
    found = (JSON.parse(await tokenizerConfig.text()) as { chat_template?: unknown } | null)
      ?.chat_template;
  } catch {
    return null; // the tokenizer is not the adapter's business
  }
  if (Array.isArray(found))
    found = found.find((each: { name?: unknown }) => each?.name === "default")?.template;
  return typeof found === "string" && found !== "" ? found : null;
}

/** What is known not to be served, in the words of its remedy. */
function doubtsAbout(config: Record<string, unknown>): string[] {
  const doubts: string[] = [];
  if (config.peft_type !== undefined && config.peft_type !== "LORA")
    doubts.push(`The adapter type is ${String(config.peft_type)}. Only LoRA is supported.`);
  if (config.use_dora === true) doubts.push("DoRA is not supported. Train with use_dora=False.");
  if (typeof config.bias === "string" && config.bias !== "none")
    doubts.push("Trained biases are not supported. Train with bias='none'.");
  if (Array.isArray(config.modules_to_save) && config.modules_to_save.length > 0)
    doubts.push("Fully trained modules are not supported. Train without modules_to_save.");
  return doubts;
}
