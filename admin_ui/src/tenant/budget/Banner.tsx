/** Says on every page that a threshold of the account's budget is reached. */

import { Alert, Anchor, Box, Button, Group, Text } from "@mantine/core";
import { IconCoin } from "@tabler/icons-react";
import { useState } from "react";
import { Link, useLocation } from "react-router";
import classes from "./Banner.module.css";
import { alertOf, hiddenAs, isSet, LEVEL_COLORS, levelOf } from "./model";
import { useAccountBudget } from "./queries";

const HIDDEN = "tenora.budget.hidden";

export default function Banner() {
  const budget = useAccountBudget().data;
  const { pathname } = useLocation();
  const [hidden, setHidden] = useState(() => localStorage.getItem(HIDDEN));
  if (budget === undefined || !isSet(budget) || pathname === "/budget") return null;
  const words = alertOf(budget);
  const as = hiddenAs(budget);
  if (words === null || hidden === as) return null;
  const hide = () => {
    localStorage.setItem(HIDDEN, as);
    setHidden(as);
  };
  return (
    <Box className={classes.banner}>
      <Alert
        color={LEVEL_COLORS[levelOf(budget)]}
        icon={<IconCoin size={18} />}
        role="status"
        aria-label="Budget alert"
      >
        <Group justify="space-between" gap="sm">
          <Text size="sm">{words}</Text>
          <Group gap="sm">
            <Anchor component={Link} to="/budget" size="sm" underline="always">
              Open the budget
            </Anchor>
            <Button size="compact-sm" variant="default" onClick={hide}>
              Hide
            </Button>
          </Group>
        </Group>
      </Alert>
    </Box>
  );
}
