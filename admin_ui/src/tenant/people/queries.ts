/** What the page about a tenant's people asks the API for. */

import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type FetchClient, required, type Schemas } from "../../api/client";
import { useApi } from "../../api/context";

export type Person = Schemas["MemberOut"];
export type Invitation = Schemas["Invitation"];
export type MemberRole = Schemas["MemberChange"]["role"];

export const ROLES: Record<MemberRole, string> = {
  owner: "everything, people and keys included",
  developer: "adapters, inference, usage",
  billing: "usage, invoices, the billing profile",
  viewer: "looks, changes nothing",
};

const LIMIT = 100;

export function usePeople() {
  const { client } = useApi();
  return useQuery({
    queryKey: ["people"],
    queryFn: async () => {
      const query = { limit: LIMIT };
      const [people, invitations] = await Promise.all([
        client.GET("/v1/people", { params: { query } }),
        client.GET("/v1/invitations", { params: { query } }),
      ]);
      return {
        people: people.data?.data ?? [],
        open: (invitations.data?.data ?? []).filter(({ state }) => state === "open"),
      };
    },
  });
}

function usePeopleMutation<Input, Output>(
  mutationFn: (client: FetchClient, input: Input) => Promise<Output>,
) {
  const queries = useQueryClient();
  const { client } = useApi();
  return useMutation({
    mutationFn: (input: Input) => mutationFn(client, input),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["people"] }),
  });
}

export function useInvite() {
  return usePeopleMutation(async (client, body: { role: MemberRole; email: string | null }) => {
    const { data } = await client.POST("/v1/invitations", {
      body: { ...body, expires_in_s: 7 * 24 * 3600 },
    });
    return required(data);
  });
}

export function useWithdraw() {
  return usePeopleMutation(async (client, id: string) => {
    const params = { path: { invitation_id: id } };
    return required((await client.DELETE("/v1/invitations/{invitation_id}", { params })).data);
  });
}

export function useChangeRole() {
  return usePeopleMutation(async (client, { id, role }: { id: string; role: MemberRole }) => {
    const params = { path: { person_id: id } };
    const { data } = await client.PATCH("/v1/people/{person_id}", { params, body: { role } });
    return required(data);
  });
}

export function useRemove() {
  return usePeopleMutation(async (client, id: string) => {
    const params = { path: { person_id: id } };
    return required((await client.DELETE("/v1/people/{person_id}", { params })).data);
  });
}
