import { Anchor, Card, Code, Stack, Text } from "@mantine/core";
import { Link, useLocation } from "react-router";
import { PageHeader } from "./PageHeader";

interface NoAccessPageProps {
  /** The page that may not be opened. */
  label: string;
  first: { path: string; label: string };
}

/** Of an address whose page this session may not open. */
export function NoAccessPage({ label, first }: NoAccessPageProps) {
  return (
    <>
      <PageHeader title="No access" />
      <Card>
        <Stack gap="sm">
          <Text size="sm">
            Your role does not have access to the page {label}. Ask an owner for access.
          </Text>
          <Anchor component={Link} to={first.path} size="sm">
            Go to {first.label}
          </Anchor>
        </Stack>
      </Card>
    </>
  );
}

/** Of an address that no page has. */
export function NotFoundPage({ first }: { first: { path: string; label: string } }) {
  const { pathname } = useLocation();
  return (
    <>
      <PageHeader title="Page not found" />
      <Card>
        <Stack gap="sm">
          <Text size="sm">
            There is no page at <Code>{pathname}</Code>.
          </Text>
          <Anchor component={Link} to={first.path} size="sm">
            Go to {first.label}
          </Anchor>
        </Stack>
      </Card>
    </>
  );
}
