import { Anchor, Card, Code, Stack, Text } from "@mantine/core";
import { Link, useLocation } from "react-router";
import { PageHeader } from "./PageHeader";

/** Of an address that no page has, or none that this role may open. */
export function NotFoundPage({ first }: { first: { path: string; label: string } }) {
  const { pathname } = useLocation();
  return (
    <>
      <PageHeader title="Page not found" />
      <Card>
        <Stack gap="sm">
          <Text size="sm">
            There is no page at <Code>{pathname}</Code>, or your role does not have access to it.
          </Text>
          <Anchor component={Link} to={first.path} size="sm">
            Go to {first.label}
          </Anchor>
        </Stack>
      </Card>
    </>
  );
}
