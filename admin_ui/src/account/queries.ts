/** What the page about oneself asks the API for. */

import { useQuery } from "@tanstack/react-query";
import { required, type Schemas } from "../api/client";
import { useApi } from "../api/context";
import { useChange } from "../api/paged";

export type SignedIn = Schemas["SessionItem"];

export function useSessions() {
  const { client } = useApi();
  return useQuery({
    queryKey: ["/auth/sessions"],
    queryFn: async () => required((await client.GET("/auth/sessions")).data).data,
  });
}

export function useEndSession() {
  return useChange<string, Schemas["Deleted"]>(["/auth/sessions"], (client, session_id) =>
    client.DELETE("/auth/sessions/{session_id}", { params: { path: { session_id } } }),
  );
}
