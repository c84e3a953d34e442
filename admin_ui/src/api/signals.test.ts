import { expect, test } from "vitest";
import { ApiError } from "./errors";
import { onAnswers, onTabs, type SessionSignal, tellTabs } from "./signals";

test("any answer that knows nobody ends the session, and a lost place changes it", () => {
  const heard: SessionSignal[] = [];
  const stop = onAnswers((signal) => heard.push(signal));
  const body = (code: string) => ({ error: { code } });
  new ApiError(401, body("key_revoked"));
  new ApiError(403, body("not_a_member"));
  new ApiError(403, body("insufficient_role"));
  new ApiError(500, null);
  stop();
  new ApiError(401, null);
  expect(heard).toEqual(["over", "changed"]);
});

test("other tabs hear it, and nothing but what is a signal", async () => {
  const heard: SessionSignal[] = [];
  const stop = onTabs((signal) => heard.push(signal));
  const stranger = new BroadcastChannel("tenora.session");
  stranger.postMessage("out");
  tellTabs("over");
  await expect.poll(() => heard).toEqual(["over"]);
  stranger.close();
  stop();
});
