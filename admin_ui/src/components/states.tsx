/** What a page shows when it has nothing, when it failed, and while it waits. */

import { Alert, Button, Card, Group, Skeleton, Stack, Text, ThemeIcon } from "@mantine/core";
import { IconAlertTriangle, IconLock, IconRefresh, IconZoomQuestion } from "@tabler/icons-react";
import type { ReactNode } from "react";
import { ApiError, describe } from "../api/errors";

interface EmptyStateProps {
  icon: ReactNode;
  title: string;
  children: ReactNode;
  action?: ReactNode;
}

export function EmptyState({ icon, title, children, action }: EmptyStateProps) {
  return (
    <Card py={48}>
      <Stack align="center" gap="sm" maw={460} mx="auto" ta="center">
        <ThemeIcon size={48} radius="xl" variant="light" aria-hidden>
          {icon}
        </ThemeIcon>
        <Text fw={600}>{title}</Text>
        <Text c="dimmed" size="sm">
          {children}
        </Text>
        {action}
      </Stack>
    </Card>
  );
}

interface ErrorStateProps {
  error: unknown;
  title?: string;
  onRetry?: () => void;
}

/** `title` says what did not work; without, something was looked up. */
export function ErrorState({ error, title, onRetry }: ErrorStateProps) {
  if (error instanceof ApiError && error.status === 403) return <ForbiddenState error={error} />;
  if (error instanceof ApiError && error.status === 404 && title === undefined)
    return <NotFoundState error={error} />;
  const requestId = error instanceof ApiError ? error.requestId : null;
  return (
    <Alert
      color="red"
      icon={<IconAlertTriangle size={18} />}
      title={title ?? titleOf(error)}
      role="alert"
    >
      <Text size="sm">{describe(error)}</Text>
      {requestId && (
        <Text size="xs" c="dimmed" ff="monospace" mt={4}>
          request {requestId}
        </Text>
      )}
      {onRetry && (
        <Group mt="sm">
          <Button
            size="xs"
            variant="default"
            leftSection={<IconRefresh size={14} />}
            onClick={onRetry}
          >
            Try again
          </Button>
        </Group>
      )}
    </Alert>
  );
}

/** What was asked for wrongly is nothing that broke. */
function titleOf(error: unknown): string {
  const isRefused = error instanceof ApiError && error.status >= 400 && error.status < 500;
  return isRefused ? "The request was not accepted" : "Something went wrong";
}

function ForbiddenState({ error }: { error: ApiError }) {
  return (
    <EmptyState icon={<IconLock size={24} />} title="You do not have access to this page">
      {error.message} Ask an account owner for a role with access.
    </EmptyState>
  );
}

function NotFoundState({ error }: { error: ApiError }) {
  return (
    <EmptyState icon={<IconZoomQuestion size={24} />} title="Not found">
      {error.message} It may have been deleted, or it belongs to another account.
    </EmptyState>
  );
}

/** What a Stack has below it is hidden until it is gone (global.css), so that nothing jumps. */
export function TableSkeleton({ rows = 4 }: { rows?: number }) {
  return (
    <Card role="status" aria-busy="true" aria-label="Loading" data-loading>
      <Stack gap="md">
        {Array.from({ length: rows }, (_, row) => (
          // biome-ignore lint/suspicious/noArrayIndexKey: identical placeholders in a fixed order
          <Group key={row} gap="lg" wrap="nowrap">
            <Skeleton height={14} width="28%" />
            <Skeleton height={14} width="12%" />
            <Skeleton height={14} width="36%" />
            <Skeleton height={14} width="14%" />
          </Group>
        ))}
      </Stack>
    </Card>
  );
}
