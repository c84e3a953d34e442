/** Picks an adapter's two files out of whatever was dropped, and foretells what they hold. */

import { type AdapterPreview, HeaderError, previewAdapter, readHeader } from "./safetensors";

export const CONFIG_NAME = "adapter_config.json";
export const WEIGHTS_NAME = "adapter_model.safetensors";

export interface Picked {
  config: File | null;
  weights: File | null;
  /** Why something that was dropped cannot be taken, in words. */
  refused: string | null;
}

/** Where a dropped file lay, as far as the browser says. */
function pathOf(file: File): string {
  return "path" in file && typeof file.path === "string" ? file.path : file.webkitRelativePath;
}

/**
 * The files by name, the folder's own before those of its checkpoints; a lone file of the right kind
 * is taken whatever it is called.
 */
export function pickFiles(dropped: File[], before: Picked): Picked {
  const depth = (file: File) =>
    pathOf(file)
      .replace(/^\.?\//, "")
      .split("/").length;
  const files = [...dropped].sort((a, b) => depth(a) - depth(b));
  const named = (name: string) => files.find((file) => file.name === name);
  const ending = (end: string) => {
    const matches = files.filter((file) => file.name.endsWith(end));
    return matches.length === 1 ? matches[0] : undefined;
  };
  const config = named(CONFIG_NAME) ?? ending(".json") ?? before.config;
  const weights = named(WEIGHTS_NAME) ?? ending(".safetensors") ?? before.weights;
  const pickle = files.find((file) => /\.(bin|pt|pth|ckpt)$/.test(file.name));
  const refused =
    pickle && !weights
      ? `${pickle.name} is a pickle and is never read. Save the adapter again with safetensors.`
      : null;
  return { config: config ?? null, weights: weights ?? null, refused };
}

/** A folder's name makes a good first name for the adapter. */
export function suggestName(files: File[]): string {
  for (const file of files) {
    const folder = pathOf(file)
      .split("/")
      .filter((part) => part !== "" && part !== ".")
      .at(-2);
    if (folder) return folder.replace(/[^A-Za-z0-9._-]+/g, "-").slice(0, 63);
  }
  return "";
}

export interface ConfigPreview {
  rank: number | null;
  alpha: number | null;
  modules: string | null;
}

export interface Forecast {
  config: ConfigPreview | null;
  weights: AdapterPreview | null;
  /** What the server will most likely object to. */
  doubts: string[];
}

async function readConfig(file: File): Promise<Record<string, unknown>> {
  if (file.size > 1024 * 1024) throw new HeaderError("The config is larger than 1 MiB.");
  try {
    const value: unknown = JSON.parse(await file.text());
    if (typeof value === "object" && value !== null) return value as Record<string, unknown>;
  } catch {
    // Said below, with the name of the file.
  }
  throw new HeaderError(`${file.name} is not a JSON object.`);
}

function previewConfig(config: Record<string, unknown>): ConfigPreview {
  const number = (value: unknown) => (typeof value === "number" ? value : null);
  const modules = config.target_modules;
  return {
    rank: number(config.r),
    alpha: number(config.lora_alpha),
    modules: Array.isArray(modules)
      ? modules.join(", ")
      : typeof modules === "string"
        ? modules
        : null,
  };
}

function doubtsAbout(config: ConfigPreview | null, weights: AdapterPreview | null): string[] {
  const doubts: string[] = [];
  if (weights && weights.ranks.length === 0)
    doubts.push("No lora_A tensor was found: this does not look like a LoRA adapter.");
  if (config?.rank && weights?.ranks.length === 1 && weights.ranks[0] !== config.rank)
    doubts.push(`The config says rank ${config.rank}, the tensors have rank ${weights.ranks[0]}.`);
  return doubts;
}

/** Reads the config and the header of the weights; never throws for what the files hold. */
export async function forecast({ config, weights }: Picked): Promise<Forecast> {
  const doubts: string[] = [];
  const attempt = async <T>(read: () => Promise<T>): Promise<T | null> => {
    try {
      return await read();
    } catch (error) {
      if (!(error instanceof HeaderError)) throw error;
      doubts.push(error.message);
      return null;
    }
  };
  const configPreview =
    config && (await attempt(async () => previewConfig(await readConfig(config))));
  const weightsPreview =
    weights && (await attempt(async () => previewAdapter(await readHeader(weights))));
  doubts.push(...doubtsAbout(configPreview, weightsPreview));
  return { config: configPreview, weights: weightsPreview, doubts };
}
