/** Gives the pages their session and a client that carries its key. */

import { QueryCache, QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { createContext, type ReactNode, useCallback, useContext, useMemo, useState } from "react";
import { createClient, createHooks, type FetchClient, type QueryHooks } from "./client";
import { ApiError } from "./errors";
import { loadSession, type Session, saveSession } from "./session";

interface SessionState {
  session: Session | null;
  notice: string | null;
  signIn: (session: Session) => void;
  signOut: (notice?: string) => void;
}

interface ApiState {
  client: FetchClient;
  hooks: QueryHooks;
}

const SessionContext = createContext<SessionState | null>(null);
const ApiContext = createContext<ApiState | null>(null);

function newQueryClient(onUnauthorized: () => void): QueryClient {
  return new QueryClient({
    queryCache: new QueryCache({
      onError(error) {
        if (error instanceof ApiError && error.status === 401) onUnauthorized();
      },
    }),
    defaultOptions: {
      queries: {
        staleTime: 5_000,
        retry: (failures, error) =>
          failures < 2 && !(error instanceof ApiError && error.status < 500),
      },
    },
  });
}

export function SessionProvider({ children }: { children: ReactNode }) {
  const [session, setSession] = useState<Session | null>(loadSession);
  const [notice, setNotice] = useState<string | null>(null);

  const signIn = useCallback((next: Session) => {
    saveSession(next);
    setNotice(null);
    setSession(next);
  }, []);
  const signOut = useCallback((why?: string) => {
    saveSession(null);
    setNotice(why ?? null);
    setSession(null);
  }, []);

  const key = session?.key ?? "";
  const api = useMemo(() => {
    const client = createClient(key);
    return { client, hooks: createHooks(client) };
  }, [key]);
  // A client of its own per key: nothing one tenant saw is left for the next.
  // biome-ignore lint/correctness/useExhaustiveDependencies: made anew whenever the key changes
  const queryClient = useMemo(
    () => newQueryClient(() => signOut("Your key is no longer accepted. Sign in again.")),
    [key, signOut],
  );
  const state = useMemo(
    () => ({ session, notice, signIn, signOut }),
    [session, notice, signIn, signOut],
  );

  return (
    <SessionContext value={state}>
      <ApiContext value={api}>
        <QueryClientProvider client={queryClient}>{children}</QueryClientProvider>
      </ApiContext>
    </SessionContext>
  );
}

export function useSession(): SessionState {
  const state = useContext(SessionContext);
  if (state === null) throw new Error("useSession is used outside of SessionProvider.");
  return state;
}

export function useApi(): ApiState {
  const api = useContext(ApiContext);
  if (api === null) throw new Error("useApi is used outside of SessionProvider.");
  return api;
}
