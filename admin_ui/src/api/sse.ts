/**
 * Server-sent events over fetch, by the WHATWG event-stream rules. Knows bytes and lines; what an
 * event means is the caller's business.
 */

export interface SseEvent {
  event: string;
  data: string;
}

/** Collects lines into events; `push` takes text cut anywhere, `end` what a stream left unfinished. */
export class SseParser {
  private buffer = "";
  private event = "";
  private data: string[] = [];

  push(text: string): SseEvent[] {
    this.buffer += text;
    const events: SseEvent[] = [];
    for (;;) {
      const match = /\r\n|\n|\r/.exec(this.buffer);
      // A trailing CR may be the first half of a CRLF that is still on its way.
      if (!match || (match[0] === "\r" && match.index === this.buffer.length - 1)) return events;
      const line = this.buffer.slice(0, match.index);
      this.buffer = this.buffer.slice(match.index + match[0].length);
      const done = this.line(line);
      if (done) events.push(done);
    }
  }

  end(): SseEvent[] {
    const events = this.push("\n\n");
    this.buffer = "";
    return events;
  }

  private line(line: string): SseEvent | undefined {
    if (line === "") return this.dispatch();
    const colon = line.indexOf(":");
    if (colon === 0) return undefined; // a comment, used as a keep-alive
    const field = colon < 0 ? line : line.slice(0, colon);
    const raw = colon < 0 ? "" : line.slice(colon + 1);
    const value = raw.startsWith(" ") ? raw.slice(1) : raw;
    if (field === "data") this.data.push(value);
    if (field === "event") this.event = value;
    return undefined;
  }

  private dispatch(): SseEvent | undefined {
    const { event, data } = this;
    this.event = "";
    this.data = [];
    return data.length === 0 ? undefined : { event: event || "message", data: data.join("\n") };
  }
}

export async function* readSse(body: ReadableStream<Uint8Array>): AsyncGenerator<SseEvent> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = new SseParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      yield* parser.push(decoder.decode(value, { stream: true }));
    }
    yield* parser.push(decoder.decode());
    yield* parser.end();
  } finally {
    reader.releaseLock();
  }
}
