/** The frame around every page: navigation, where one is, search, what is live, who is signed in. */

import {
  ActionIcon,
  AppShell,
  Badge,
  Box,
  Burger,
  Button,
  Group,
  Kbd,
  Menu,
  NavLink,
  Text,
  Tooltip,
} from "@mantine/core";
import { useDisclosure, useHotkeys, useReducedMotion } from "@mantine/hooks";
import {
  IconBuilding,
  IconChevronDown,
  IconDevices,
  IconLogout,
  IconSearch,
  IconUserCircle,
} from "@tabler/icons-react";
import { lazy, type ReactNode, Suspense, useState } from "react";
import { Link, matchPath, useLocation } from "react-router";
import { useSession } from "../api/context";
import { type Place, placeId } from "../api/session";
import { LiveBadge } from "../live/LiveBadge";
import { type PageRoute, routesOf } from "../routes";
import { useAccountBudget } from "../tenant/budget/queries";
import { ColorSchemeToggle } from "./ColorSchemeToggle";
import { Logo } from "./Logo";
import classes from "./Shell.module.css";

const loadSearch = () => import("../search/Search");
const Search = lazy(loadSearch);
const BudgetBanner = lazy(() => import("../tenant/budget/Banner"));
const searchShortcut = /mac/i.test(navigator.userAgent) ? "⌘ K" : "Ctrl K";

export function Shell({ children }: { children: ReactNode }) {
  const [opened, { toggle, close }] = useDisclosure();
  const isStill = useReducedMotion();
  return (
    <AppShell
      layout="alt"
      transitionDuration={isStill ? 0 : 200}
      header={{ height: 56 }}
      navbar={{ width: 224, breakpoint: "md", collapsed: { mobile: !opened } }}
      padding={{ base: "md", sm: "lg" }}
    >
      <a href="#main" className={classes.skip}>
        Skip to main content
      </a>
      <AppShell.Header px={{ base: "md", sm: "lg" }} className={classes.header}>
        <Group h="100%" gap="sm" wrap="nowrap" justify="space-between">
          <Group gap="sm" wrap="nowrap" miw={0}>
            <Burger
              opened={opened}
              onClick={toggle}
              hiddenFrom="md"
              size="sm"
              aria-label="Navigation"
            />
            <Whose />
          </Group>
          <Group gap="xs" wrap="nowrap">
            <SearchButton />
            <LiveBadge />
            <Box visibleFrom="xs">
              <ColorSchemeToggle />
            </Box>
            <Account />
          </Group>
        </Group>
      </AppShell.Header>
      <AppShell.Navbar className={classes.navbar} aria-label="Main">
        <Group justify="space-between" h={56} px="md">
          <Logo />
          <Burger opened={opened} onClick={toggle} hiddenFrom="md" size="sm" aria-label="Close" />
        </Group>
        <Box className={classes.navigation} flex={1} px="sm">
          <Navigation onGo={close} />
        </Box>
      </AppShell.Navbar>
      <AppShell.Main id="main" className={classes.main}>
        <Box maw={1440} mx="auto">
          {children}
          <Suspense>
            <BudgetAlert />
          </Suspense>
        </Box>
      </AppShell.Main>
    </AppShell>
  );
}

/** For who may see what a tenant spends; it is loaded where there is a budget. */
function BudgetAlert() {
  const place = useSession().session?.place;
  const isAllowed = place?.role === "tenant" && place.may.includes("usage");
  const budget = useAccountBudget(null, isAllowed).data;
  return budget?.amount == null ? null : <BudgetBanner />;
}

/** The entry of the navigation that the address belongs to: the longest one that it begins with. */
function activeOf(routes: readonly PageRoute[], pathname: string): string | null {
  const shown = routes.find(({ path }) => matchPath(path, pathname));
  if (shown?.under !== undefined) return shown.under;
  const within = routes.filter(
    ({ path, menu }) => menu && (pathname === path || pathname.startsWith(`${path}/`)),
  );
  return within.reduce<string | null>(
    (best, { path }) => (best === null || path.length > best.length ? path : best),
    null,
  );
}

function Navigation({ onGo }: { onGo: () => void }) {
  const { session } = useSession();
  const { pathname } = useLocation();
  const opened = routesOf(session?.place ?? null);
  const routes = opened.filter(({ menu }) => menu !== undefined);
  const active = activeOf(opened, pathname);
  const groups = [...new Set(routes.map(({ menu }) => menu?.group ?? ""))];
  return groups.map((group) => (
    <Box key={group} component="section" aria-label={group} mb="md">
      <Text size="xs" c="dimmed" fw={550} px={10} mb={4} aria-hidden>
        {group}
      </Text>
      {routes
        .filter(({ menu }) => menu?.group === group)
        .map((route) => (
          <NavLink
            key={route.path}
            component={Link}
            to={route.path}
            label={route.label}
            leftSection={route.menu && <route.menu.Icon size={17} />}
            active={route.path === active}
            aria-current={route.path === active ? "page" : undefined}
            onClick={onGo}
            onMouseEnter={() => void route.preload()}
            onFocus={() => void route.preload()}
            className={classes.link}
          />
        ))}
    </Box>
  ));
}

const nameOf = ({ role, name }: Place) => (role === "admin" ? "Operator" : (name ?? "Tenant"));

/** The tenant, or the operator's side, that is looked at; a menu for who belongs to several. */
function Whose() {
  const { session, goTo } = useSession();
  const place = session?.place;
  if (!session || !place) return null;
  const label = (
    <Group gap={8} wrap="nowrap" miw={0}>
      <IconBuilding size={17} aria-hidden />
      <Text fw={600} size="sm" truncate maw={{ base: 110, xs: 180, md: 320 }} title={nameOf(place)}>
        {nameOf(place)}
      </Text>
    </Group>
  );
  if (session.places.length < 2) return label;
  return (
    <Menu position="bottom-start">
      <Menu.Target>
        <Button
          variant="subtle"
          color="gray"
          px={6}
          rightSection={<IconChevronDown size={14} />}
          aria-label={`Switch from ${nameOf(place)}`}
        >
          {label}
        </Button>
      </Menu.Target>
      <Menu.Dropdown>
        {session.places.map((each) => (
          <Menu.Item
            key={placeId(each)}
            aria-current={each === place ? "true" : undefined}
            onClick={() => goTo(each)}
          >
            {nameOf(each)}
          </Menu.Item>
        ))}
      </Menu.Dropdown>
    </Menu>
  );
}

/** The search itself is loaded when somebody is about to search. */
function SearchButton() {
  const [isOpen, { open, close, toggle }] = useDisclosure();
  const [wasOpen, setWasOpen] = useState(false);
  if (isOpen && !wasOpen) setWasOpen(true);
  useHotkeys([["mod+K", toggle]], []);
  const about = { onClick: open, onMouseEnter: loadSearch, onFocus: loadSearch };
  return (
    <>
      <Button
        visibleFrom="lg"
        variant="default"
        size="xs"
        c="dimmed"
        leftSection={<IconSearch size={14} />}
        rightSection={<Kbd size="xs">{searchShortcut}</Kbd>}
        {...about}
      >
        Search
      </Button>
      <Tooltip label="Search">
        <ActionIcon
          hiddenFrom="lg"
          variant="subtle"
          color="gray"
          size="lg"
          aria-label="Search"
          {...about}
        >
          <IconSearch size={18} />
        </ActionIcon>
      </Tooltip>
      {wasOpen && (
        <Suspense>
          <Search isOpen={isOpen} onClose={close} />
        </Suspense>
      )}
    </>
  );
}

function Account() {
  const { session, signOut } = useSession();
  const place = session?.place;
  if (!session || !place) return null;
  return (
    <Menu position="bottom-end">
      <Menu.Target>
        <ActionIcon variant="subtle" color="gray" size="lg" aria-label="Account">
          <IconUserCircle size={20} />
        </ActionIcon>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Label>
          <Text size="xs" ff={session.isPerson ? undefined : "monospace"} maw={220} truncate>
            {session.who}
          </Text>
          {session.keyName && (
            <Text size="xs" maw={220} truncate>
              {session.keyName}
            </Text>
          )}
          <Badge mt={4} color={place.role === "admin" ? "grape" : "teal"}>
            {nameOf(place)}
          </Badge>
        </Menu.Label>
        <Menu.Divider />
        <Menu.Item component={Link} to="/account" leftSection={<IconDevices size={16} />}>
          My sessions
        </Menu.Item>
        <Menu.Item leftSection={<IconLogout size={16} />} onClick={() => signOut()}>
          Sign out
        </Menu.Item>
      </Menu.Dropdown>
    </Menu>
  );
}
