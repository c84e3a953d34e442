import { Anchor, Group, Text } from "@mantine/core";
import { Link } from "react-router";
import classes from "./TenantName.module.css";
import { tenantColor } from "./tenantColor";

interface TenantNameProps {
  id: string;
  /** null: it is not known here; then its id stands alone. */
  name: string | null | undefined;
  /** The part of the tenant's page that it leads to. */
  tab?: string;
}

/** A tenant for the operator: its colour, its name, and the end of its id, for names repeat. */
export function TenantName({ id, name, tab }: TenantNameProps) {
  const to = `/operator/tenants/${id}${tab === undefined ? "" : `?tab=${tab}`}`;
  return (
    <Group gap={6} wrap="nowrap" component="span" display="inline-flex" title={id} maw={200}>
      <TenantDot id={id} />
      <Anchor component={Link} to={to} inherit truncate>
        {name ?? id}
      </Anchor>
      {name && (
        <Text span size="xs" c="dimmed" ff="monospace" flex="none">
          {id.slice(-6)}
        </Text>
      )}
    </Group>
  );
}

/** Of no tenant it is grey. */
export function TenantDot({ id }: { id: string | null }) {
  return <span className={classes.dot} style={{ background: tenantColor(id) }} aria-hidden />;
}
