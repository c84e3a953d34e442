/** The door: by the sign-in provider, where there is one, or by a key of either kind. */

import {
  Alert,
  Box,
  Button,
  Card,
  Center,
  Divider,
  Group,
  PasswordInput,
  Stack,
  Text,
  Title,
} from "@mantine/core";
import { IconInfoCircle, IconKey, IconLogin2 } from "@tabler/icons-react";
import { type FormEvent, useState } from "react";
import { useSession } from "../api/context";
import { describe } from "../api/errors";
import { keyProblem, signInByKey } from "../api/session";
import { ColorSchemeToggle } from "../components/ColorSchemeToggle";
import { Logo } from "../components/Logo";
import { failure, loginUrl, useProvider } from "./methods";
import classes from "./SignInPage.module.css";

export default function SignInPage() {
  const { notice, signIn } = useSession();
  const provider = useProvider();
  const told = notice ?? failure(window.location.search);
  const [key, setKey] = useState("");
  const [error, setError] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);

  async function submit(event: FormEvent) {
    event.preventDefault();
    const trimmed = key.trim();
    const problem = keyProblem(trimmed);
    if (problem !== null) {
      setError(problem);
      return;
    }
    setBusy(true);
    setError(null);
    try {
      signIn(await signInByKey(trimmed));
    } catch (reason) {
      setError(describe(reason));
      setBusy(false);
    }
  }

  return (
    <Center mih="100dvh" p="md" className={classes.page} component="main">
      <Box w={400} maw="100%">
        <Group justify="space-between" mb="md">
          <Logo size={32} />
          <ColorSchemeToggle />
        </Group>
        <Card padding="xl" shadow="sm">
          <form onSubmit={submit} noValidate>
            <Stack>
              <div>
                <Title order={1} size="h2">
                  Sign in
                </Title>
                <Text c="dimmed" size="sm" mt={4}>
                  Use a tenant's API key to manage adapters, keys and costs, or an admin key to
                  operate this server.
                </Text>
              </div>
              {told && (
                <Alert color="yellow" icon={<IconInfoCircle size={18} />} role="status">
                  {told}
                </Alert>
              )}
              {provider !== null && (
                <>
                  <Button
                    component="a"
                    href={loginUrl()}
                    leftSection={<IconLogin2 size={16} />}
                    fullWidth
                  >
                    Sign in with {provider}
                  </Button>
                  <Divider label="or with a key" />
                </>
              )}
              <PasswordInput
                label="Key"
                placeholder="Paste your API key"
                autoComplete="off"
                spellCheck={false}
                autoFocus={provider === null}
                leftSection={<IconKey size={16} />}
                value={key}
                onChange={(event) => setKey(event.currentTarget.value)}
                error={error}
                errorProps={{ role: "alert" }}
              />
              <Button
                type="submit"
                loading={busy}
                fullWidth
                variant={provider === null ? "filled" : "default"}
              >
                Sign in
              </Button>
            </Stack>
          </form>
        </Card>
        <Text c="dimmed" size="xs" ta="center" mt="md">
          The key is exchanged for a session and is not stored. Closing the browser signs you out.
        </Text>
      </Box>
    </Center>
  );
}
