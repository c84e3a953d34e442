import { Group, Text } from "@mantine/core";
import { IconAlertTriangle, IconCircleCheck, IconClock } from "@tabler/icons-react";
import classes from "./Incidents.module.css";
import type { Incident } from "./model";

/** What is wrong, the worst first, or that nothing is. */
export function Incidents({ incidents, isKnown }: { incidents: Incident[]; isKnown: boolean }) {
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
      {incidents.map(({ key, grade, text }) => (
        <li key={key} className={classes.strip} data-grade={grade}>
          <IconAlertTriangle size={18} aria-hidden />
          <Text size="sm">
            <span className={classes.grade}>{grade === "bad" ? "Critical: " : "Warning: "}</span>
            {text}
          </Text>
        </li>
      ))}
    </ul>
  );
}
