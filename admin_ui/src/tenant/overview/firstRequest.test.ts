import { expect, test } from "vitest";
import { firstRequest } from "./firstRequest";

test("a first request names the base URL and the model, and no key", () => {
  const curl = firstRequest("curl", "http://localhost:8000/v1", "it's");
  expect(curl).toContain("curl http://localhost:8000/v1/chat/completions");
  expect(curl).toContain('"Authorization: Bearer $TENORA_API_KEY"');
  expect(curl).toContain(`"model":"it'\\''s"`);
  const python = firstRequest("python", "http://localhost:8000/v1", "base");
  expect(python).toContain('base_url="http://localhost:8000/v1"');
  expect(python).toContain('model="base"');
});
