/** The door: one key, whose kind is found out by asking the API. */

import {
  Alert,
  Box,
  Button,
  Card,
  Center,
  Group,
  PasswordInput,
  Stack,
  Text,
  Title,
} from "@mantine/core";
import { IconInfoCircle, IconKey } from "@tabler/icons-react";
import { type FormEvent, useState } from "react";
import { useSession } from "../api/context";
import { describe } from "../api/errors";
import { whoHas } from "../api/session";
import { ColorSchemeToggle } from "../components/ColorSchemeToggle";
import { Logo } from "../components/Logo";
import classes from "./SignInPage.module.css";

export function SignInPage() {
  const { notice, signIn } = useSession();
  const [key, setKey] = useState("");
  const [error, setError] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);

  async function submit(event: FormEvent) {
    event.preventDefault();
    const trimmed = key.trim();
    if (trimmed === "") {
      setError("Enter a key first.");
      return;
    }
    setBusy(true);
    setError(null);
    try {
      signIn(await whoHas(trimmed));
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
                  A tenant key opens your adapters, a playground and your costs. The operator's key
                  opens tenants and the engine.
                </Text>
              </div>
              {notice && (
                <Alert color="yellow" icon={<IconInfoCircle size={18} />} role="status">
                  {notice}
                </Alert>
              )}
              <PasswordInput
                label="Key"
                placeholder="Paste your key"
                autoComplete="off"
                spellCheck={false}
                autoFocus
                leftSection={<IconKey size={16} />}
                value={key}
                onChange={(event) => setKey(event.currentTarget.value)}
                error={error}
                errorProps={{ role: "alert" }}
              />
              <Button type="submit" loading={busy} fullWidth>
                Sign in
              </Button>
            </Stack>
          </form>
        </Card>
        <Text c="dimmed" size="xs" ta="center" mt="md">
          The key stays in this tab and is forgotten when you close it.
        </Text>
      </Box>
    </Center>
  );
}
