/** Gives the pages their session and a client that speaks for it. */

import { notifications } from "@mantine/notifications";
import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import {
  createContext,
  type ReactNode,
  startTransition,
  useCallback,
  useContext,
  useEffect,
  useMemo,
  useRef,
  useState,
} from "react";
import { at } from "./base";
import { createClient, createHooks, type FetchClient, type QueryHooks } from "./client";
import { ApiError, describe } from "./errors";
import {
  choosePlace,
  credentialsOf,
  endSession,
  loadSession,
  type Place,
  type Session,
} from "./session";
import { onAnswers, onTabs, tellTabs } from "./signals";

interface SessionState {
  /** undefined: not known yet. */
  session: Session | null | undefined;
  notice: string | null;
  /** Whether the tenant that is looked at was found suspended. */
  isSuspended: boolean;
  signIn: (session: Session) => void;
  signOut: () => Promise<void>;
  goTo: (place: Place) => void;
}

interface ApiState {
  client: FetchClient;
  hooks: QueryHooks;
}

const SessionContext = createContext<SessionState | null>(null);
const ApiContext = createContext<ApiState | null>(null);

const OVER = "Your session or its API key has expired or was revoked. Sign in again.";
const STILL_OPEN = "You are still signed in, because signing out failed. Try again.";
const OVER_ELSEWHERE = "You signed out in another tab.";

function newQueryClient(): QueryClient {
  return new QueryClient({
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
  const [session, setSession] = useState<Session | null | undefined>(undefined);
  const [notice, setNotice] = useState<string | null>(null);
  const [suspended, setSuspended] = useState<string | null>(null);

  useEffect(() => {
    // As a transition the first page is shown at once where its chunk is there: React would show
    // its fallback, and keep that for 300 ms.
    loadSession().then(
      (loaded) => startTransition(() => setSession(loaded)),
      (error) => {
        setNotice(describe(error));
        setSession(null);
      },
    );
  }, []);

  const signIn = useCallback((next: Session) => {
    setNotice(null);
    setSession(next);
    tellTabs("changed");
  }, []);
  const known = useRef(session);
  known.current = session;
  useEffect(() => {
    const end = (why: string) => {
      if (!known.current) return; // a key that opens nothing, at the door
      setNotice(why);
      setSession(null);
    };
    const again = () => void loadSession().then(setSession, () => undefined);
    const stopAnswers = onAnswers((signal) => {
      if (signal === "over") end(OVER);
      else if (signal === "suspended") setSuspended(known.current?.place?.tenant ?? null);
      else again();
    });
    const stopTabs = onTabs((signal) => (signal === "over" ? end(OVER_ELSEWHERE) : again()));
    return () => {
      stopAnswers();
      stopTabs();
    };
  }, []);
  const signOut = useCallback(async () => {
    let elsewhere: string | null = null;
    try {
      if (session) elsewhere = await endSession(session);
    } catch (error) {
      notifications.show({ color: "red", message: `${STILL_OPEN} ${describe(error)}` });
      return;
    }
    setNotice(null);
    setSession(null);
    tellTabs("over");
    window.location.assign(elsewhere ?? at("/")); // the next person starts at the start
  }, [session]);
  const goTo = useCallback((place: Place) => {
    choosePlace(place);
    setSession((now) => (now ? { ...now, place } : now));
  }, []);

  const { csrf, tenant } = credentialsOf(session ?? null);
  const api = useMemo(() => {
    const client = createClient({ csrf, tenant });
    return { client, hooks: createHooks(client) };
  }, [csrf, tenant]);
  // A client of its own per session and tenant: nothing one tenant saw is left for the next.
  // biome-ignore lint/correctness/useExhaustiveDependencies: made anew whenever either changes
  const queryClient = useMemo(newQueryClient, [csrf, tenant]);
  const isSuspended = suspended !== null && suspended === tenant;
  const state = useMemo(
    () => ({ session, notice, isSuspended, signIn, signOut, goTo }),
    [session, notice, isSuspended, signIn, signOut, goTo],
  );

  return (
    <SessionContext value={state}>
      <ApiContext value={api}>
        <QueryClientProvider client={queryClient}>{children}</QueryClientProvider>
      </ApiContext>
    </SessionContext>
  );
}

export function useSession(): SessionState & { session: Session | null } {
  const state = useContext(SessionContext);
  if (state === null) throw new Error("useSession is used outside of SessionProvider.");
  return { ...state, session: state.session ?? null };
}

/** Whether the server has said by now who is signed in. */
export function useIsKnown(): boolean {
  return useContext(SessionContext)?.session !== undefined;
}

export function useApi(): ApiState {
  const api = useContext(ApiContext);
  if (api === null) throw new Error("useApi is used outside of SessionProvider.");
  return api;
}
