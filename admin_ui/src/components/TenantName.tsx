import { Anchor, Group, Text } from "@mantine/core";
import { Link } from "react-router";
import classes from "./TenantName.module.css";
import { tenantColor } from "./tenantColor";

interface TenantNameProps {
  id: string;
  /** null: it is not known here; then its id stands alone. */
  name: string | null | undefined;
  /** Leads to the tenant, unless it is false. */
  isLink?: boolean;
}

/** A tenant for the operator: its colour, its name, and the end of its id, for names repeat. */
export function TenantName({ id, name, isLink = true }: TenantNameProps) {
  return (
    <Group gap={6} wrap="nowrap" component="span" display="inline-flex" title={id} maw="100%">
      <TenantDot id={id} />
      {isLink ? (
        <Anchor component={Link} to={`/operator/tenants/${id}`} inherit truncate>
          {name ?? id}
        </Anchor>
      ) : (
        <Text span inherit truncate>
          {name ?? id}
        </Text>
      )}
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
