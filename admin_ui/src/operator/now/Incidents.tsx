import { Anchor, Group, Text } from "@mantine/core";
import { IconAlertTriangle, IconCircleCheck, IconClock } from "@tabler/icons-react";
import { Link } from "react-router";
import { formatAgo, formatDate } from "../../components/format";
import { TenantName } from "../../components/TenantName";
import classes from "./Incidents.module.css";
import type { Incident } from "./incidents";

interface IncidentsProps {
  incidents: readonly Incident[];
  isKnown: boolean;
  nowS: number;
}

/** What is wrong, the worst first, or that nothing is. */
export function Incidents({ incidents, isKnown, nowS }: IncidentsProps) {
  if (incidents.length === 0)
    return (
      <Group
        gap="xs"
        className={classes.strip}
        data-grade={isKnown ? "good" : "unknown"}
        role="status"
      >
        {isKnown ? <IconCircleCheck size={18} aria-hidden /> : <IconClock size={18} aria-hidden />}
        <Text size="sm">
          {isKnown ? "All systems normal." : "No data from the server at the moment."}
        </Text>
      </Group>
    );
  return (
    <ul className={classes.list} aria-label="Incidents">
      {incidents.map((each) => (
        <li key={each.key} className={classes.strip} data-grade={each.grade}>
          <IconAlertTriangle size={18} aria-hidden />
          <div className={classes.words}>
            <Text size="sm">
              <span className={classes.grade}>
                {each.grade === "bad" ? "Critical: " : "Warning: "}
              </span>
              {each.text}
            </Text>
            <Group gap="md" className={classes.about}>
              <Since sinceS={each.sinceS} nowS={nowS} />
              <Tenants of={each} />
              <Look at={each} />
            </Group>
          </div>
        </li>
      ))}
    </ul>
  );
}

function Since({ sinceS, nowS }: { sinceS: number | null; nowS: number }) {
  if (sinceS === null) return <span>start unknown</span>;
  return (
    <span data-testid="since">
      since <time dateTime={new Date(sinceS * 1000).toISOString()}>{formatDate(sinceS)}</time> (
      {formatAgo(sinceS, nowS)})
    </span>
  );
}

function Tenants({ of: { tenants } }: { of: Incident }) {
  if (tenants.length === 0) return <span>all tenants</span>;
  return tenants.map(({ id, name }) => <TenantName key={id} id={id} name={name} />);
}

function Look({ at: { to, look } }: { at: Incident }) {
  if (to.startsWith("#"))
    return (
      <Anchor href={to} inherit>
        {look}
      </Anchor>
    );
  return (
    <Anchor component={Link} to={to} inherit>
      {look}
    </Anchor>
  );
}
