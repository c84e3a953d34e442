/** Where the link of an invitation leads: sign in, then join. */

import { Button, Card, Center, Stack, Text, Title } from "@mantine/core";
import { useMutation, useQuery } from "@tanstack/react-query";
import { required, type Schemas } from "../api/client";
import { useApi, useSession } from "../api/context";
import { loadSession } from "../api/session";
import { formatDate } from "../components/format";
import { Logo } from "../components/Logo";
import { ErrorState } from "../components/states";
import { loginUrl, useProvider } from "../signin/methods";
import classes from "../signin/SignInPage.module.css";
import { forgetInvitation } from "./invitation";

export default function InvitationPage({ token, onDone }: { token: string; onDone: () => void }) {
  const { session, signIn } = useSession();
  const { client } = useApi();
  const provider = useProvider();
  const join = useMutation({
    mutationFn: async () => {
      const { data } = await client.POST("/auth/invitations/accept", { body: { token } });
      return required(data);
    },
    onSuccess: async () => {
      const now = await loadSession();
      leave();
      if (now) signIn(now);
    },
  });
  const offer = useQuery({
    queryKey: ["invitation", token],
    queryFn: async () => {
      const { data } = await client.POST("/auth/invitations/look", { body: { token } });
      return required(data);
    },
    retry: false,
  });
  function leave() {
    forgetInvitation();
    onDone();
  }
  return (
    <Center mih="100dvh" p="md" className={classes.page} component="main">
      <Card padding="xl" shadow="sm" w={400} maw="100%">
        <Stack>
          <Logo size={32} />
          <Title order={1} size="h2">
            You are invited
          </Title>
          {offer.data && <Offer of={offer.data} />}
          {offer.error ? (
            <ErrorState title="This invitation is not valid" error={offer.error} />
          ) : session?.isPerson ? (
            <>
              <Text size="sm">You are signed in as {session.who}.</Text>
              {join.error ? <ErrorState error={join.error} /> : null}
              <Button loading={join.isPending} onClick={() => join.mutate()}>
                Join
              </Button>
            </>
          ) : provider === null ? (
            <Text size="sm">
              Invitations need a sign-in provider, and none is configured on this server. Contact
              the operator.
            </Text>
          ) : (
            <>
              <Text size="sm">Sign in to accept the invitation.</Text>
              <Button component="a" href={loginUrl()}>
                Sign in with {provider}
              </Button>
            </>
          )}
          <Button variant="default" onClick={leave}>
            Cancel
          </Button>
        </Stack>
      </Card>
    </Center>
  );
}

function Offer({ of: { tenant_name, role, expires_at } }: { of: Schemas["Invited"] }) {
  return (
    <Text size="sm">
      To join <strong>{tenant_name ?? "the operators of this server"}</strong> with the role{" "}
      <strong>{role}</strong>. The invitation expires on {formatDate(expires_at)}.
    </Text>
  );
}
