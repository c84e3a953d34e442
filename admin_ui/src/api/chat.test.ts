import { describe, expect, it, vi } from "vitest";
import { applyChunk, type ChatHandlers } from "./chat";
import { ApiError } from "./errors";

function handlers() {
  return {
    onHeaders: vi.fn<ChatHandlers["onHeaders"]>(),
    onText: vi.fn<ChatHandlers["onText"]>(),
    onFinish: vi.fn<ChatHandlers["onFinish"]>(),
    onUsage: vi.fn<ChatHandlers["onUsage"]>(),
  };
}

describe("applyChunk", () => {
  it("passes on text, the reason and the usage", () => {
    const seen = handlers();
    applyChunk('{"choices":[{"index":0,"delta":{"role":"assistant"}}],"usage":null}', seen);
    expect(seen.onText).not.toHaveBeenCalled();
    applyChunk('{"choices":[{"index":0,"delta":{"content":"Hi"}}],"usage":null}', seen);
    applyChunk('{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}', seen);
    const usage = {
      prompt_tokens: 9,
      completion_tokens: 2,
      prompt_tokens_details: { cached_tokens: 8 },
    };
    expect(applyChunk(JSON.stringify({ choices: [], usage }), seen)).toBe(false);
    expect(seen.onText).toHaveBeenCalledExactlyOnceWith("Hi");
    expect(seen.onFinish).toHaveBeenCalledExactlyOnceWith("stop");
    expect(seen.onUsage).toHaveBeenCalledExactlyOnceWith({
      prompt_tokens: 9,
      completion_tokens: 2,
      cached_tokens: 8,
    });
    expect(applyChunk("[DONE]", seen)).toBe(true);
  });

  it("raises the error that a stream ends with", () => {
    const event = '{"error":{"message":"out of pages","type":"server_error","code":"x"}}';
    expect(() => applyChunk(event, handlers())).toThrow(
      expect.objectContaining({ message: "out of pages", code: "x" }),
    );
    expect(() => applyChunk(event, handlers())).toThrow(ApiError);
  });
});
