/**
 * What has become of the session, told to whoever keeps it: by answers of the server in this tab,
 * and by other tabs of the same browser, which share its cookie.
 */

/**
 * over: nobody is signed in any more. changed: somebody is, perhaps as somebody else. suspended: the
 * tenant that is looked at is.
 */
export type SessionSignal = "over" | "changed" | "suspended";

type Listener = (signal: SessionSignal) => void;

const listeners = new Set<Listener>();
const CHANNEL = "tenora.session";
const SUSPENDED = "tenant_suspended";
const LOST_PLACE = new Set(["no_membership", "not_a_member"]);

/** Calls the listeners of this tab where an answer says that the session is not what it was. */
export function noticeAnswer(status: number, code: string | null): void {
  const signal =
    status === 401
      ? "over"
      : status !== 403
        ? null
        : code === SUSPENDED
          ? "suspended"
          : LOST_PLACE.has(code ?? "")
            ? "changed"
            : null;
  if (signal !== null) for (const listener of listeners) listener(signal);
}

export function onAnswers(listener: Listener): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** A word to the other tabs. */
export function tellTabs(signal: SessionSignal): void {
  const channel = new BroadcastChannel(CHANNEL);
  channel.postMessage(signal);
  channel.close();
}

export function onTabs(listener: Listener): () => void {
  const channel = new BroadcastChannel(CHANNEL);
  channel.onmessage = ({ data }) => {
    if (data === "over" || data === "changed") listener(data);
  };
  return () => channel.close();
}
