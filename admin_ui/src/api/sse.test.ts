import { describe, expect, it } from "vitest";
import { readSse, type SseEvent, SseParser } from "./sse";

const STREAM =
  ': keep-alive\n\ndata: {"a":1}\n\nevent: error\r\ndata: one\r\ndata:two\r\n\r\ndata: ä€😀\n\ndata: [DONE]\n\n';
const EXPECTED: SseEvent[] = [
  { event: "message", data: '{"a":1}' },
  { event: "error", data: "one\ntwo" },
  { event: "message", data: "ä€😀" },
  { event: "message", data: "[DONE]" },
];

function chunks(bytes: Uint8Array, size: number): ReadableStream<Uint8Array> {
  return new ReadableStream({
    start(controller) {
      for (let at = 0; at < bytes.length; at += size)
        controller.enqueue(bytes.slice(at, at + size));
      controller.close();
    },
  });
}

describe("readSse", () => {
  it.each([1, 2, 3, 5, 7, 64, 10_000])(
    "gives the same events whatever the cut (%i bytes)",
    async (size) => {
      const events: SseEvent[] = [];
      for await (const event of readSse(chunks(new TextEncoder().encode(STREAM), size)))
        events.push(event);
      expect(events).toEqual(EXPECTED);
    },
  );

  it("gives an event that the stream ended without a blank line", async () => {
    const events: SseEvent[] = [];
    for await (const event of readSse(chunks(new TextEncoder().encode("data: last"), 3)))
      events.push(event);
    expect(events).toEqual([{ event: "message", data: "last" }]);
  });
});

describe("SseParser", () => {
  it("forgets the event name after each event", () => {
    const parser = new SseParser();
    expect(parser.push("event: ping\ndata: 1\n\ndata: 2\n\n")).toEqual([
      { event: "ping", data: "1" },
      { event: "message", data: "2" },
    ]);
  });

  it("drops an event without data and unknown fields", () => {
    const parser = new SseParser();
    expect(parser.push("event: nothing\n\nid: 7\nretry: 10\ndata\n\n")).toEqual([
      { event: "message", data: "" },
    ]);
  });
});
