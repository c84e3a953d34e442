/**
 * One stream of live events for whoever is signed in. It knows events and their age; what a topic
 * means to a page, and what a payload holds, is the business of those who subscribe.
 */

import { at } from "../api/base";
import { type Credentials, headersOf } from "../api/client";
import { errorFrom } from "../api/errors";
import { readSse } from "../api/sse";

export interface LiveState {
  /** away: it was there and is not now, or never came. */
  status: "connecting" | "live" | "away";
  /** When the server was last heard, in ms since the epoch. */
  heardAt: number | null;
}

type Heard = () => void;
type Payload = (data: unknown) => void;

/** The server pings every 5 s; this long without a word is a broken stream. */
const SILENCE_MS = 12_000;
/** Levels, of which the newest holds until the next: who listens later is told it at once. */
const LEVELS: ReadonlySet<string> = new Set(["engine", "processes"]);
const RETRY_MS = [500, 1_000, 2_000, 5_000] as const;

export class LiveConnection {
  private state: LiveState = { status: "connecting", heardAt: null };
  private readonly heard = new Set<Heard>();
  private readonly sources = new Map<string, Set<Payload>>();
  private readonly latest = new Map<string, unknown>();
  private stopped = false;
  private open: AbortController | null = null;
  private failures = 0;
  /** What was asked for since the first hello is kept new; after a gap anything may be old. */
  private heardBefore = false;

  constructor(
    private readonly url: string,
    private readonly credentials: Credentials,
    /** null: everything may have changed. */
    private readonly onChange: (topics: string[] | null) => void,
  ) {}

  snapshot = (): LiveState => this.state;

  subscribe = (listener: Heard): (() => void) => {
    this.heard.add(listener);
    return () => this.heard.delete(listener);
  };

  /** Payloads of a named event. */
  listen(name: string, listener: Payload): () => void {
    const listeners = this.sources.get(name) ?? new Set();
    this.sources.set(name, listeners.add(listener));
    if (this.latest.has(name)) listener(this.latest.get(name));
    return () => listeners.delete(listener);
  }

  start(): void {
    this.stopped = false;
    void this.run();
  }

  stop(): void {
    this.stopped = true;
    this.open?.abort();
  }

  private async run(): Promise<void> {
    while (!this.stopped) {
      await this.once().catch(() => undefined);
      if (this.stopped) return;
      this.become({ ...this.state, status: "away" });
      const wait = RETRY_MS[Math.min(this.failures, RETRY_MS.length - 1)] ?? 5_000;
      this.failures += 1;
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }

  private async once(): Promise<void> {
    const open = new AbortController();
    this.open = open;
    let silence = setTimeout(() => open.abort(), SILENCE_MS);
    try {
      const response = await fetch(at(this.url), {
        headers: { accept: "text/event-stream", ...headersOf(this.credentials) },
        signal: open.signal,
      });
      if (!response.ok) throw await errorFrom(response);
      if (response.body === null) return;
      for await (const { event, data } of readSse(response.body)) {
        clearTimeout(silence);
        silence = setTimeout(() => open.abort(), SILENCE_MS);
        this.take(event, data);
      }
    } finally {
      clearTimeout(silence);
      open.abort();
    }
  }

  private take(event: string, data: string): void {
    this.failures = 0;
    this.become({ status: "live", heardAt: Date.now() });
    if (event === "ping") return;
    if (event === "hello") {
      if (this.heardBefore) this.onChange(null);
      this.heardBefore = true;
    }
    const payload: unknown = JSON.parse(data);
    if (event === "change") this.onChange(topicsOf(payload));
    if (LEVELS.has(event)) this.latest.set(event, payload);
    for (const listener of this.sources.get(event) ?? []) listener(payload);
  }

  private become(state: LiveState): void {
    this.state = state;
    for (const listener of this.heard) listener();
  }
}

function topicsOf(payload: unknown): string[] | null {
  if (typeof payload !== "object" || payload === null || !("topics" in payload)) return null;
  const { topics } = payload;
  return Array.isArray(topics) ? topics.filter((topic) => typeof topic === "string") : null;
}
