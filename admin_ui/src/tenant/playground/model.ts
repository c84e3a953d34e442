/**
 * What is asked in the playground: a prompt, its parameters, and whom. Pure: what a request looks like, how it is
 * written as code, and how it is put into a link, in which no key ever is.
 */

import type { ChatRequest } from "../../api/chat";

export interface Params {
  maxTokens: number;
  temperature: number;
  topP: number;
  /** null: each answer is drawn anew. */
  seed: number | null;
  /** Where answers end, one a line. */
  stop: string;
  tier: "auto" | "priority" | "default" | "flex";
}

export interface Setup {
  prompt: string;
  system: string;
  models: string[];
  params: Params;
  /** At once they share the engine, so their times are no comparison. */
  isTogether: boolean;
}

export interface Turn {
  prompt: string;
  answer: string;
}

export const MAX_PANES = 4;
export const TIERS = ["auto", "priority", "default", "flex"] as const;
export const PARAMS: Params = {
  maxTokens: 160,
  temperature: 0,
  topP: 1,
  seed: null,
  stop: "",
  tier: "auto",
};

export function chatRequest(setup: Setup, model: string, turns: readonly Turn[]): ChatRequest {
  const { params } = setup;
  const messages: ChatRequest["messages"] = [];
  if (setup.system.trim() !== "") messages.push({ role: "system", content: setup.system });
  for (const { prompt, answer } of turns)
    messages.push({ role: "user", content: prompt }, { role: "assistant", content: answer });
  messages.push({ role: "user", content: setup.prompt });
  const stop = params.stop.split("\n").filter((line) => line !== "");
  return {
    model,
    messages,
    max_completion_tokens: params.maxTokens,
    temperature: params.temperature,
    ...(params.topP < 1 ? { top_p: params.topP } : {}),
    ...(params.seed === null ? {} : { seed: params.seed }),
    ...(stop.length > 0 ? { stop } : {}),
    ...(params.tier === "auto" ? {} : { service_tier: params.tier }),
  };
}

export type Language = "curl" | "Python" | "TypeScript";
export const LANGUAGES: readonly Language[] = ["curl", "Python", "TypeScript"];

/** The request as somebody's program would send it; the key is theirs to fill in. */
export function codeOf(language: Language, origin: string, request: ChatRequest): string {
  if (language === "curl") return curl(origin, request);
  return language === "Python" ? python(origin, request) : typescript(origin, request);
}

function curl(origin: string, request: ChatRequest): string {
  const body = JSON.stringify({ ...request, stream: true }, null, 2).replaceAll("'", "'\\''");
  return [
    `curl ${origin}/v1/chat/completions \\`,
    '  -H "Authorization: Bearer $TENORA_API_KEY" \\',
    '  -H "Content-Type: application/json" \\',
    `  -d '${body}'`,
  ].join("\n");
}

function python(origin: string, request: ChatRequest): string {
  const fields = Object.entries(request).map(
    ([name, value]) => `    ${name}=${pythonOf(value).replaceAll("\n", "\n    ")},`,
  );
  return `import os

from openai import OpenAI

client = OpenAI(base_url="${origin}/v1", api_key=os.environ["TENORA_API_KEY"])
stream = client.chat.completions.create(
${fields.join("\n")}
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
`;
}

function pythonOf(value: unknown): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(pythonOf).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value)
      .map(([name, each]) => `${JSON.stringify(name)}: ${pythonOf(each)}`)
      .join(", ")}}`;
  return JSON.stringify(value); // JSON's strings and numbers are Python's
}

function typescript(origin: string, request: ChatRequest): string {
  const body = JSON.stringify({ ...request, stream: true }, null, 2)
    .replace(/^( *)"(\w+)":/gm, "$1$2:")
    .replace(/^ {2}/gm, "  ");
  return `import OpenAI from "openai";

const client = new OpenAI({
  baseURL: "${origin}/v1",
  apiKey: process.env.TENORA_API_KEY,
});
const stream = await client.chat.completions.create(${body});
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
}
`;
}

/** A setup as text for an address: JSON in base64url. */
export function encodeSetup(setup: Setup): string {
  const bytes = new TextEncoder().encode(JSON.stringify(setup));
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replace(/=+$/, "");
}

/** What `encodeSetup` wrote; null for anything else. What it lacks is as in a new playground. */
export function decodeSetup(text: string): Setup | null {
  try {
    const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
    const bytes = Uint8Array.from(binary, (char) => char.charCodeAt(0));
    return setupOf(JSON.parse(new TextDecoder().decode(bytes)));
  } catch {
    return null;
  }
}

function setupOf(value: unknown): Setup | null {
  if (typeof value !== "object" || value === null) return null;
  const told = value as Partial<Record<keyof Setup, unknown>>;
  if (typeof told.prompt !== "string" || typeof told.system !== "string") return null;
  if (!Array.isArray(told.models)) return null;
  const models = told.models.filter((model) => typeof model === "string").slice(0, MAX_PANES);
  return {
    prompt: told.prompt,
    system: told.system,
    models,
    params: paramsOf(told.params),
    isTogether: told.isTogether === true,
  };
}

function paramsOf(value: unknown): Params {
  const told = (typeof value === "object" && value !== null ? value : {}) as Record<
    string,
    unknown
  >;
  const number = (name: keyof Params, otherwise: number) =>
    typeof told[name] === "number" ? (told[name] as number) : otherwise;
  return {
    maxTokens: number("maxTokens", PARAMS.maxTokens),
    temperature: number("temperature", PARAMS.temperature),
    topP: number("topP", PARAMS.topP),
    seed: typeof told.seed === "number" ? told.seed : null,
    stop: typeof told.stop === "string" ? told.stop : "",
    tier: TIERS.find((tier) => tier === told.tier) ?? "auto",
  };
}
