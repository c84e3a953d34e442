/** How old a page says its data are, once they are older than they should be. */

import { useEffect, useState } from "react";
import { formatAgo } from "../components/format";
import { useLive } from "./context";

/** Between two events of a stream that works; older than this is worth a word. */
const FRESH_MS = 15_000;

/**
 * "31 s old" for data of `updatedAt` (ms since the epoch; 0: none yet) while the live stream is away, null while all
 * is well: what the stream keeps up to date is as new as its last word.
 */
export function useStale(updatedAt: number): string | null {
  const { status, heardAt } = useLive();
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1_000);
    return () => clearInterval(timer);
  }, []);
  if (status === "live" || updatedAt === 0) return null;
  const knownAt = Math.max(updatedAt, heardAt ?? 0);
  if (now - knownAt < FRESH_MS) return null;
  return formatAgo(knownAt / 1000, now / 1000).replace(" ago", " old");
}
