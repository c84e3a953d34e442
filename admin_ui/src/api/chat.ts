/** One streamed chat completion: what arrives becomes calls, times are taken where they happen. */

import { at } from "./base";
import { headersOf, type Schemas } from "./client";
import { ApiError, errorFrom } from "./errors";
import type { Credentials } from "./session";
import { readSse } from "./sse";

/** The fields that the document names; it lets others pass, of which any name is one. */
type Named<T> = { [Name in keyof T as string extends Name ? never : Name]: T[Name] };

export type ChatRequest = Omit<
  Partial<Named<Schemas["ChatCompletionRequest"]>>,
  "messages" | "stream" | "stream_options"
> & { model: string; messages: Array<{ role: "system" | "user" | "assistant"; content: string }> };

export interface ChatHeaders {
  adapter: string | null;
  digest: string | null;
  residency: string | null;
  tier: string | null;
  requestId: string | null;
}

export interface ChatUsage {
  prompt_tokens: number;
  completion_tokens: number;
  cached_tokens: number;
}

export interface ChatHandlers {
  onHeaders: (headers: ChatHeaders) => void;
  onText: (text: string) => void;
  onFinish: (reason: string) => void;
  onUsage: (usage: ChatUsage) => void;
}

interface Chunk {
  choices?: Array<{ delta?: { content?: string | null }; finish_reason?: string | null }>;
  usage?: {
    prompt_tokens: number;
    completion_tokens: number;
    prompt_tokens_details?: { cached_tokens?: number };
  } | null;
  error?: unknown;
}

/** Applies one event's data; true when it was the last. Throws ApiError on an error event. */
export function applyChunk(data: string, handlers: ChatHandlers): boolean {
  if (data === "[DONE]") return true;
  const chunk = JSON.parse(data) as Chunk;
  if (chunk.error) throw new ApiError(500, chunk);
  for (const choice of chunk.choices ?? []) {
    if (choice.delta?.content) handlers.onText(choice.delta.content);
    if (choice.finish_reason) handlers.onFinish(choice.finish_reason);
  }
  if (chunk.usage)
    handlers.onUsage({
      prompt_tokens: chunk.usage.prompt_tokens,
      completion_tokens: chunk.usage.completion_tokens,
      cached_tokens: chunk.usage.prompt_tokens_details?.cached_tokens ?? 0,
    });
  return false;
}

/** Streams until the last event. Rejects with ApiError, or an AbortError when `signal` fires. */
export async function streamChat(
  credentials: Credentials,
  request: ChatRequest,
  signal: AbortSignal,
  handlers: ChatHandlers,
): Promise<void> {
  const response = await fetch(at("/v1/chat/completions"), {
    method: "POST",
    headers: { ...headersOf(credentials), "content-type": "application/json" },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw await errorFrom(response);
  if (response.body === null) throw new Error("The server sent an empty response. Try again.");
  handlers.onHeaders({
    adapter: response.headers.get("x-tenora-adapter"),
    digest: response.headers.get("x-tenora-adapter-digest"),
    residency: response.headers.get("x-tenora-residency"),
    tier: response.headers.get("x-tenora-tier"),
    requestId: response.headers.get("x-request-id"),
  });
  for await (const event of readSse(response.body)) {
    if (applyChunk(event.data, handlers)) return;
  }
  throw new Error("The connection closed before the response was complete. Try again.");
}
