/** The account's settings: whom bills are for, and what becomes of prompts and answers. */

import { Stack, Text } from "@mantine/core";
import { useSession } from "../../api/context";
import { useMayChange } from "../../api/roles";
import { PageHeader } from "../../components/PageHeader";
import { ErrorState, TableSkeleton } from "../../components/states";
import { BillingProfile } from "./BillingProfile";
import { Chosen } from "./Chosen";
import { useProfile, useSettings } from "./queries";

export default function Page() {
  const may = useSession().session?.place?.may ?? [];
  const mayChange = useMayChange("keys");
  const settings = useSettings();
  const hasProfile = may.includes("usage");
  // Both at once: what comes later would push the other down.
  const isPending = useProfile(hasProfile).isLoading || settings.isPending;
  return (
    <>
      <PageHeader
        title="Settings"
        description="Who your invoices are for, and what is kept of your requests."
      />
      {isPending && <TableSkeleton rows={8} />}
      <Stack display={isPending ? "none" : undefined}>
        {hasProfile && <BillingProfile />}
        {settings.error && !settings.data && (
          <ErrorState error={settings.error} onRetry={() => settings.refetch()} />
        )}
        {settings.data && !mayChange && (
          <Text size="sm" c="dimmed">
            You can see the settings below but not change them. Owners can, and keys with the scope
            keys.
          </Text>
        )}
        {settings.data && <Chosen settings={settings.data} mayChange={mayChange} />}
      </Stack>
    </>
  );
}
