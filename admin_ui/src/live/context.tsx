/** Gives the pages the live stream of their place, and makes old what it says has changed. */

import { useQueryClient } from "@tanstack/react-query";
import {
  createContext,
  type ReactNode,
  useContext,
  useEffect,
  useMemo,
  useState,
  useSyncExternalStore,
} from "react";
import { useSession } from "../api/context";
import { credentialsOf } from "../api/session";
import { LiveConnection, type LiveState } from "./connection";
import { isTouched } from "./topics";

const LiveContext = createContext<LiveConnection | null>(null);

export function LiveProvider({ children }: { children: ReactNode }) {
  const { session } = useSession();
  const queries = useQueryClient();
  const { csrf, tenant } = credentialsOf(session);
  const url = session?.place?.role === "admin" ? "/admin/v1/events" : "/v1/events/stream";
  const connection = useMemo(
    () =>
      new LiveConnection(url, { csrf, tenant }, (topics) => {
        void queries.invalidateQueries({
          predicate: ({ queryKey }) =>
            queryKey.some((part) => typeof part === "string" && isTouched(part, topics)),
        });
      }),
    [url, csrf, tenant, queries],
  );
  useEffect(() => {
    connection.start();
    return () => connection.stop();
  }, [connection]);
  return <LiveContext value={connection}>{children}</LiveContext>;
}

function useConnection(): LiveConnection {
  const connection = useContext(LiveContext);
  if (connection === null) throw new Error("The live stream is used outside of LiveProvider.");
  return connection;
}

/** Whether the stream is there, and when it was last heard. */
export function useLive(): LiveState {
  const connection = useConnection();
  return useSyncExternalStore(connection.subscribe, connection.snapshot);
}

/** The newest payload of a named event that `read` understands (null: it does not). */
export function useLiveSource<T>(name: string, read: (data: unknown) => T | null): T | null {
  const connection = useConnection();
  const [payload, setPayload] = useState<T | null>(null);
  useEffect(
    () =>
      connection.listen(name, (data) => {
        const understood = read(data);
        if (understood !== null) setPayload(() => understood);
      }),
    [connection, name, read],
  );
  return payload;
}
