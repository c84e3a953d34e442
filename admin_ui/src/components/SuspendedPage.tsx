import { Alert, Button, Text } from "@mantine/core";
import { IconLock } from "@tabler/icons-react";
import { useSession } from "../api/context";
import { PageHeader } from "./PageHeader";

/** Instead of every page of a suspended tenant, on which each part would say so. */
export function SuspendedPage() {
  const { session } = useSession();
  const name = session?.place?.name ?? "This tenant";
  return (
    <>
      <PageHeader title={name} />
      <Alert
        color="orange"
        icon={<IconLock size={18} />}
        title={`${name} is suspended`}
        role="alert"
      >
        <Text size="sm" mb="sm">
          Requests, API keys and pages are blocked while the tenant is suspended. Contact the
          operator of this server.
        </Text>
        <Button size="xs" variant="default" onClick={() => window.location.reload()}>
          Check again
        </Button>
      </Alert>
    </>
  );
}
