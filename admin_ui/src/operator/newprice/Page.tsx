/** A new price list: written, seen on a month that was, and only then published. */

import { Button, Grid, Group, Stack, Text } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { type FormEvent, useState } from "react";
import { useNavigate, useSearchParams } from "react-router";
import { ApiError } from "../../api/errors";
import { formatDate } from "../../components/format";
import { PageHeader } from "../../components/PageHeader";
import { ErrorState, TableSkeleton } from "../../components/states";
import { months } from "../billing/model";
import { scopeWords } from "../prices/model";
import { useAddPrice, useGeneralPrice, usePrice } from "../prices/queries";
import {
  bodyOf,
  EMPTY,
  earliestIn,
  type Fields,
  faultsIn,
  fieldsFrom,
  fieldTime,
  isRight,
  previewBodyOf,
} from "./model";
import { PreviewView } from "./PreviewView";
import { PriceForm } from "./PriceForm";
import { usePreview } from "./queries";

export default function Page() {
  const [params] = useSearchParams();
  const from = params.get("from");
  const named = usePrice(from);
  const general = useGeneralPrice(from === null);
  const { price, isPending, error, refetch } = from === null ? general : named;
  const header = (
    <PageHeader
      title="Create price list"
      description={
        price
          ? `Starts from the current list for ${scopeWords(price)}, list ${price.no}, which ends when the new one starts.`
          : "The list applies to usage from its start. Usage that has already been rated keeps its price."
      }
      back={{ to: "/operator/prices", label: "Prices" }}
    />
  );
  if (isPending || error)
    return (
      <>
        {header}
        {error ? <ErrorState error={error} onRetry={refetch} /> : <TableSkeleton rows={8} />}
      </>
    );
  return (
    <>
      {header}
      <Editor key={price?.id ?? ""} start={price ? fieldsFrom(price) : EMPTY} />
    </>
  );
}

function Editor({ start }: { start: Fields }) {
  const navigate = useNavigate();
  const choices = months(new Date());
  const [fields, setFields] = useState(start);
  const [month, setMonth] = useState(choices[1] ?? "");
  const [isTried, setTried] = useState(false);
  const preview = usePreview();
  const publish = useAddPrice((made) => {
    notifications.show({
      color: "teal",
      message: `Price list published. It takes effect ${formatDate(made.effective_from)}.`,
    });
    navigate(`/operator/prices?price=${made.id}`);
  });
  const faults = faultsIn(fields);
  const isGood = isRight(faults);
  // A preview of anything else than what is written now is none.
  const seen = preview.data;
  const isSeen =
    isGood &&
    seen !== undefined &&
    JSON.stringify(seen.body) === JSON.stringify(previewBodyOf(fields, seen.body.month ?? ""));
  const earliest = publish.error instanceof ApiError ? earliestIn(publish.error.message) : null;

  function look(event: FormEvent) {
    event.preventDefault();
    setTried(true);
    if (isGood) preview.mutate(previewBodyOf(fields, month));
  }

  return (
    <form onSubmit={look} noValidate>
      <Grid gap="lg">
        <Grid.Col span={{ base: 12, lg: 5 }}>
          <PriceForm
            fields={fields}
            faults={isTried ? faults : null}
            onChange={(changes) => {
              setFields((before) => ({ ...before, ...changes }));
              publish.reset();
            }}
          />
        </Grid.Col>
        <Grid.Col span={{ base: 12, lg: 7 }}>
          <Stack>
            <PreviewView
              months={choices}
              month={month}
              onMonth={setMonth}
              isBusy={preview.isPending}
              isOld={seen !== undefined && !isSeen}
              error={preview.error}
              preview={seen?.preview ?? null}
            />
            {publish.error && (
              <ErrorState error={publish.error} title="The price list was not published" />
            )}
            {earliest && (
              <Group>
                <Button
                  variant="light"
                  size="xs"
                  onClick={() => {
                    setFields((before) => ({ ...before, begins: fieldTime(earliest) }));
                    publish.reset();
                  }}
                >
                  Start at the earliest possible time, {formatDate(earliest)}
                </Button>
              </Group>
            )}
            <Group justify="flex-end" gap="sm">
              {!isSeen && (
                <Text size="sm" c="dimmed">
                  Preview the list before you publish it.
                </Text>
              )}
              <Button
                disabled={!isSeen}
                loading={publish.isPending}
                onClick={() => publish.mutate(bodyOf(fields))}
              >
                Publish
              </Button>
            </Group>
          </Stack>
        </Grid.Col>
      </Grid>
    </form>
  );
}
