import { Anchor, Group, Stack, Text } from "@mantine/core";
import { Link } from "react-router";
import { formatAgo, formatDate } from "../../components/format";
import { Panel } from "../../components/Panel";
import { ErrorState } from "../../components/states";
import { useKeyNames } from "../usage/queries";
import { changes } from "./model";
import { useDone, useEvents } from "./queries";

const SHOWN = 10;

/** What happened, and what somebody did, newest first. */
export function Lately({ mayAudit }: { mayAudit: boolean }) {
  const events = useEvents();
  const done = useDone(mayAudit); // whoever may see the log may see keys
  const keys = useKeyNames(mayAudit);
  const nowS = Date.now() / 1000;
  // Both or none: one that comes later would stand between those of the other.
  const isKnown = !events.isLoading && !done.isLoading && !keys.isLoading;
  const found = isKnown ? changes(events.data ?? [], done.data ?? [], SHOWN, keys.data) : [];
  return (
    <Panel title="Recent changes">
      {events.error && !events.data && <ErrorState error={events.error} />}
      {isKnown && events.data && found.length === 0 && (
        <Text size="sm" c="dimmed">
          No changes yet. New adapter versions, API keys, invoices and budget alerts appear here.
        </Text>
      )}
      <Stack gap={8} component="ul" m={0} p={0} style={{ listStyle: "none" }}>
        {found.map(({ id, atS, what, by, to }) => (
          <Group key={id} component="li" justify="space-between" gap="sm" wrap="nowrap">
            <Text size="sm" miw={0}>
              {to ? (
                <Anchor component={Link} to={to} inherit>
                  {what}
                </Anchor>
              ) : (
                what
              )}
              {by && (
                <Text span size="xs" c="dimmed">
                  {" "}
                  by {by}
                </Text>
              )}
            </Text>
            <Text size="xs" c="dimmed" className="numbers" title={formatDate(atS)} flex="none">
              {formatAgo(atS, nowS)}
            </Text>
          </Group>
        ))}
      </Stack>
    </Panel>
  );
}
