/** The state of one streamed answer: text so far, headers, times, usage, how it ended. */

import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import {
  type ChatHandlers,
  type ChatHeaders,
  type ChatRequest,
  type ChatUsage,
  streamChat,
} from "../../api/chat";
import { useSession } from "../../api/context";
import { credentialsOf } from "../../api/session";
import type { Turn } from "./model";

export interface Answer {
  status: "idle" | "waiting" | "streaming" | "done" | "stopped" | "failed";
  text: string;
  headers: ChatHeaders | null;
  usage: ChatUsage | null;
  finish: string | null;
  ttftMs: number | null;
  totalMs: number | null;
  error: unknown;
}

const IDLE: Answer = {
  status: "idle",
  text: "",
  headers: null,
  usage: null,
  finish: null,
  ttftMs: null,
  totalMs: null,
  error: null,
};

/** Output tokens per second after the first one, null until it can be said. */
export function tokenRate({ usage, ttftMs, totalMs }: Answer): number | null {
  if (usage === null || ttftMs === null || totalMs === null) return null;
  const spanMs = totalMs - ttftMs;
  return usage.completion_tokens > 1 && spanMs > 0
    ? ((usage.completion_tokens - 1) * 1000) / spanMs
    : null;
}

export interface Stream {
  answer: Answer;
  /** What was asked and answered before, as far as it ended well. */
  turns: readonly Turn[];
  start: (request: ChatRequest, prompt: string) => Promise<void>;
  stop: () => void;
  forget: () => void;
}

export function useStream(): Stream {
  const { session } = useSession();
  const credentials = useMemo(() => credentialsOf(session), [session]);
  const [answer, setAnswer] = useState<Answer>(IDLE);
  const [turns, setTurns] = useState<Turn[]>([]);
  const current = useRef<AbortController | null>(null);

  const stop = useCallback(() => current.current?.abort(), []);
  useEffect(() => stop, [stop]);

  const start = useCallback(
    async (request: ChatRequest, prompt: string) => {
      current.current?.abort();
      const control = new AbortController();
      current.current = control;
      const startedMs = performance.now();
      const update = (change: (before: Answer) => Partial<Answer>) => {
        if (current.current !== control) return; // a newer run owns the pane
        setAnswer((before) => ({ ...before, ...change(before) }));
      };
      const elapsed = () => performance.now() - startedMs;
      const handlers: ChatHandlers = {
        onHeaders: (headers) => update(() => ({ headers })),
        onText: (text) => {
          const nowMs = elapsed();
          said += text;
          update((before) => ({
            status: "streaming",
            text: before.text + text,
            ttftMs: before.ttftMs ?? nowMs,
          }));
        },
        onFinish: (finish) => update(() => ({ finish, totalMs: elapsed() })),
        onUsage: (usage) => update(() => ({ usage })),
      };
      let said = "";
      setAnswer({ ...IDLE, status: "waiting" });
      try {
        await streamChat(credentials, request, control.signal, handlers);
        update((before) => ({ status: "done", totalMs: before.totalMs ?? elapsed() }));
        if (current.current === control)
          setTurns((before) => [...before, { prompt, answer: said }]);
      } catch (error) {
        if (control.signal.aborted) update(() => ({ status: "stopped", totalMs: elapsed() }));
        else update(() => ({ status: "failed", error, totalMs: elapsed() }));
      }
    },
    [credentials],
  );

  const forget = useCallback(() => setTurns([]), []);
  return { answer, turns, start, stop, forget };
}

export function isRunning(answer: Answer): boolean {
  return answer.status === "waiting" || answer.status === "streaming";
}
