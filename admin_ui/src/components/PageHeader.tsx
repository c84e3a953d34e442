import { Anchor, Box, Group, Text, Title } from "@mantine/core";
import { IconChevronLeft } from "@tabler/icons-react";
import type { ReactNode } from "react";
import { Link } from "react-router";
import classes from "./PageHeader.module.css";
import { useTitle } from "./title";

interface PageHeaderProps {
  title: string;
  description?: ReactNode;
  action?: ReactNode;
  /** Beside the title: a state, a badge. */
  beside?: ReactNode;
  /** The page this one is a part of. */
  back?: { to: string; label: string };
}

/** The one h1 of a page; it names the document, too, and takes the focus after navigation. */
export function PageHeader({ title, description, action, beside, back }: PageHeaderProps) {
  const heading = useTitle(title);
  return (
    <Box mb="lg">
      {back && (
        <Anchor component={Link} to={back.to} size="sm" mb={4} display="inline-flex">
          <IconChevronLeft size={18} aria-hidden /> {back.label}
        </Anchor>
      )}
      <Group justify="space-between" align="flex-start" gap="md">
        <Box maw={720} miw={0}>
          <Group gap="sm">
            <Title order={1} ref={heading} tabIndex={-1} className={classes.title}>
              {title}
            </Title>
            {beside}
          </Group>
          {description && (
            <Text c="dimmed" size="sm" mt={4}>
              {description}
            </Text>
          )}
        </Box>
        {action}
      </Group>
    </Box>
  );
}
