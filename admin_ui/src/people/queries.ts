/** What the pages about people ask the API for. */

import type { Schemas } from "../api/client";
import { useChange, usePaged } from "../api/paged";
import { type Invitation, memberRole, operatorRole, type Person, type Whose } from "./model";

const LIMIT = 50;
const TOUCHED = ["/people", "/invitations"];
const LASTS_S = 7 * 24 * 3600;

const named = (whose: Whose) => (typeof whose === "string" ? whose : whose.tenant);

export function usePeople(whose: Whose) {
  return usePaged<Person, Schemas["MemberPage"]>("/people", named(whose), (client, after) => {
    const query = { limit: LIMIT, after };
    if (whose === "own") return client.GET("/v1/people", { params: { query } });
    if (whose === "operator") return client.GET("/admin/v1/people", { params: { query } });
    return client.GET("/admin/v1/tenants/{tenant_id}/people", {
      params: { path: { tenant_id: whose.tenant }, query },
    });
  });
}

export function useInvitations(whose: Whose) {
  return usePaged<Invitation, Schemas["InvitationPage"]>(
    "/invitations",
    named(whose),
    (client, after) => {
      const query = { limit: LIMIT, after };
      if (whose === "own") return client.GET("/v1/invitations", { params: { query } });
      if (whose === "operator") return client.GET("/admin/v1/invitations", { params: { query } });
      return client.GET("/admin/v1/tenants/{tenant_id}/invitations", {
        params: { path: { tenant_id: whose.tenant }, query },
      });
    },
  );
}

interface Invited {
  role: string;
  email: string | null;
}

export function useInvite(whose: Whose) {
  return useChange<Invited, Schemas["NewInvitation"]>(TOUCHED, (client, { role, email }) => {
    if (whose === "operator")
      return client.POST("/admin/v1/invitations", {
        body: { role: operatorRole(role), email, expires_in_s: LASTS_S },
      });
    const body = { role: memberRole(role), email, expires_in_s: LASTS_S };
    if (whose === "own") return client.POST("/v1/invitations", { body });
    return client.POST("/admin/v1/tenants/{tenant_id}/invitations", {
      params: { path: { tenant_id: whose.tenant } },
      body,
    });
  });
}

export function useWithdraw(whose: Whose) {
  return useChange<string, Schemas["Deleted"]>(TOUCHED, (client, invitation_id) => {
    const path = { invitation_id };
    if (whose === "own")
      return client.DELETE("/v1/invitations/{invitation_id}", { params: { path } });
    if (whose === "operator")
      return client.DELETE("/admin/v1/invitations/{invitation_id}", { params: { path } });
    return client.DELETE("/admin/v1/tenants/{tenant_id}/invitations/{invitation_id}", {
      params: { path: { ...path, tenant_id: whose.tenant } },
    });
  });
}

export function useChangeRole(whose: Whose) {
  return useChange<{ id: string; role: string }, Person>(TOUCHED, (client, { id, role }) => {
    const path = { person_id: id };
    if (whose === "operator")
      return client.PATCH("/admin/v1/people/{person_id}", {
        params: { path },
        body: { role: operatorRole(role) },
      });
    const body = { role: memberRole(role) };
    if (whose === "own") return client.PATCH("/v1/people/{person_id}", { params: { path }, body });
    return client.PATCH("/admin/v1/tenants/{tenant_id}/people/{person_id}", {
      params: { path: { ...path, tenant_id: whose.tenant } },
      body,
    });
  });
}

interface Leaving {
  id: string;
  revokeKeys: boolean;
}

export function useRemove(whose: Whose) {
  return useChange<Leaving, Schemas["Deleted"]>(
    ["/people", "/invitations", "/api_keys", "/admin_keys"],
    (client, { id, revokeKeys }) => {
      const path = { person_id: id };
      const query = { revoke_keys: revokeKeys };
      if (whose === "own")
        return client.DELETE("/v1/people/{person_id}", { params: { path, query } });
      if (whose === "operator")
        return client.DELETE("/admin/v1/people/{person_id}", { params: { path, query } });
      return client.DELETE("/admin/v1/tenants/{tenant_id}/people/{person_id}", {
        params: { path: { ...path, tenant_id: whose.tenant }, query },
      });
    },
  );
}

export function useSignOut(whose: Whose) {
  return useChange<string, Schemas["Deleted"]>(TOUCHED, (client, person_id) => {
    const path = { person_id };
    if (whose === "own")
      return client.DELETE("/v1/people/{person_id}/sessions", { params: { path } });
    if (whose === "operator")
      return client.DELETE("/admin/v1/people/{person_id}/sessions", { params: { path } });
    return client.DELETE("/admin/v1/tenants/{tenant_id}/people/{person_id}/sessions", {
      params: { path: { ...path, tenant_id: whose.tenant } },
    });
  });
}
