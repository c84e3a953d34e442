import { expect, test } from "vitest";
import {
  chatRequest,
  codeOf,
  decodeSetup,
  encodeSetup,
  LANGUAGES,
  PARAMS,
  type Setup,
} from "./model";

const SETUP: Setup = {
  prompt: 'It\'s "late" — 遅い\nWhat now?',
  system: "Be kind.",
  models: ["support", "json@2"],
  params: { ...PARAMS, seed: 7, stop: "\n\nEND", topP: 0.9, tier: "flex" },
  isTogether: false,
};

test("a link holds all of a setup, and nothing else is taken for one", () => {
  const text = encodeSetup(SETUP);
  expect(text).toMatch(/^[\w-]+$/);
  expect(decodeSetup(text)).toEqual(SETUP);
  for (const odd of ["", "%%%", "bm90IGpzb24", btoa("[1]"), btoa('{"prompt":1}')])
    expect(decodeSetup(odd)).toBeNull();
});

test("what a link leaves out is as in a new playground", () => {
  const text = btoa(
    JSON.stringify({ prompt: "a", system: "", models: ["b", 3], params: { tier: 1 } }),
  );
  expect(decodeSetup(text)).toEqual({
    prompt: "a",
    system: "",
    models: ["b"],
    params: PARAMS,
    isTogether: false,
  });
});

test("a request has the turns before it and only what differs from the defaults", () => {
  const request = chatRequest(SETUP, "support", [{ prompt: "Hi", answer: "Hello." }]);
  expect(request.messages.map(({ role }) => role)).toEqual(["system", "user", "assistant", "user"]);
  expect(request).toMatchObject({ seed: 7, stop: ["END"], top_p: 0.9, service_tier: "flex" });
  const plain = chatRequest({ ...SETUP, params: PARAMS, system: " " }, "support", []);
  expect(Object.keys(plain).sort()).toEqual([
    "max_completion_tokens",
    "messages",
    "model",
    "temperature",
  ]);
});

test("code has the request and no key", () => {
  const request = chatRequest(SETUP, "support", []);
  for (const language of LANGUAGES) {
    const code = codeOf(language, "https://api.example", request);
    expect(code).toContain("https://api.example/v1");
    expect(code).toContain("TENORA_API_KEY");
    expect(code).not.toMatch(/tn_/);
  }
  expect(codeOf("curl", "", request)).toContain("It'\\''s"); // within single quotes of a shell
});
