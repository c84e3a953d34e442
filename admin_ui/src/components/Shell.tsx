/** The frame around every page: navigation, who is signed in, colours, sign out. */

import {
  ActionIcon,
  AppShell,
  Badge,
  Box,
  Burger,
  Group,
  NativeSelect,
  NavLink,
  Text,
  Tooltip,
} from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { IconLogout } from "@tabler/icons-react";
import type { ReactNode } from "react";
import { Link, useLocation } from "react-router";
import { useSession } from "../api/context";
import { type Place, placeId } from "../api/session";
import { ColorSchemeToggle } from "./ColorSchemeToggle";
import { destinationsOf } from "./destinations";
import { Logo } from "./Logo";
import classes from "./Shell.module.css";

export function Shell({ children }: { children: ReactNode }) {
  const [opened, { toggle, close }] = useDisclosure();
  const { session } = useSession();
  const { pathname } = useLocation();
  const destinations = destinationsOf(session?.place ?? null);

  return (
    <AppShell
      layout="alt"
      header={{ height: { base: 56, sm: 0 } }}
      navbar={{ width: 248, breakpoint: "sm", collapsed: { mobile: !opened } }}
      padding={{ base: "md", sm: "xl" }}
    >
      <a href="#main" className={classes.skip}>
        Skip to the content
      </a>
      <AppShell.Header hiddenFrom="sm" px="md">
        <Group h="100%" gap="sm">
          <Burger opened={opened} onClick={toggle} size="sm" aria-label="Navigation" />
          <Logo size={24} />
        </Group>
      </AppShell.Header>

      <AppShell.Navbar className={classes.navbar} p="md" aria-label="Main">
        <Group justify="space-between" mb="lg" px={8}>
          <Logo />
          <Burger opened={opened} onClick={toggle} hiddenFrom="sm" size="sm" aria-label="Close" />
        </Group>
        <Box flex={1}>
          {destinations.map(({ to, label, Icon }) => (
            <NavLink
              key={to}
              component={Link}
              to={to}
              label={label}
              leftSection={<Icon size={18} />}
              active={pathname.startsWith(to)}
              aria-current={pathname.startsWith(to) ? "page" : undefined}
              onClick={close}
              className={classes.link}
            />
          ))}
        </Box>
        <SignedIn />
      </AppShell.Navbar>

      <AppShell.Main id="main" className={classes.main}>
        <Box maw={1180} mx="auto">
          {children}
        </Box>
      </AppShell.Main>
    </AppShell>
  );
}

function SignedIn() {
  const { session, signOut, goTo } = useSession();
  const place = session?.place;
  if (!session || !place) return null;
  const nameOf = ({ role, name }: Place) => (role === "admin" ? "Operator" : (name ?? "Tenant"));
  return (
    <Box className={classes.signedIn}>
      {session.places.length > 1 && (
        <NativeSelect
          aria-label="Where"
          size="xs"
          mb={8}
          value={placeId(place)}
          data={session.places.map((each) => ({ value: placeId(each), label: nameOf(each) }))}
          onChange={(event) => {
            const wanted = event.currentTarget.value;
            const chosen = session.places.find((each) => placeId(each) === wanted);
            if (chosen) goTo(chosen);
          }}
        />
      )}
      <Group gap={8} mb={6} px={8} wrap="nowrap">
        <Badge color={place.role === "admin" ? "grape" : "teal"}>{nameOf(place)}</Badge>
        <Text size="xs" c="dimmed" ff={session.isPerson ? undefined : "monospace"} truncate>
          {session.who}
        </Text>
      </Group>
      <Group gap={4}>
        <ColorSchemeToggle />
        <Tooltip label="Sign out">
          <ActionIcon
            variant="subtle"
            color="gray"
            size="lg"
            aria-label="Sign out"
            onClick={() => signOut()}
          >
            <IconLogout size={18} />
          </ActionIcon>
        </Tooltip>
      </Group>
    </Box>
  );
}
