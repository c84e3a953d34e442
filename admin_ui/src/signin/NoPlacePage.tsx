/** For who is signed in but belongs to nobody yet. */

import { Button, Card, Center, Stack, Text, Title } from "@mantine/core";
import { useSession } from "../api/context";
import { Logo } from "../components/Logo";
import classes from "./SignInPage.module.css";

export default function NoPlacePage() {
  const { session, signOut } = useSession();
  return (
    <Center mih="100dvh" p="md" className={classes.page} component="main">
      <Card padding="xl" shadow="sm" w={400} maw="100%">
        <Stack>
          <Logo size={32} />
          <Title order={1} size="h2">
            No access yet
          </Title>
          <Text size="sm">
            {session?.place
              ? `You are signed in as ${session.who}, whose role has no access to any page. Ask an account owner for another role.`
              : `You are signed in as ${session?.who}, but you do not belong to a tenant. Ask a tenant's owner or the operator of this server for an invitation, and open its link in this browser.`}
          </Text>
          <Button variant="default" onClick={() => signOut()}>
            Sign out
          </Button>
        </Stack>
      </Card>
    </Center>
  );
}
