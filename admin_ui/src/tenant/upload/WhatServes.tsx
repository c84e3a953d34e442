import { Alert, Radio, Stack, Text } from "@mantine/core";
import { IconInfoCircle } from "@tabler/icons-react";
import { counted } from "../../components/format";
import { type Adapter, DEFAULT_ALIAS, hasDefaultAlias, servesText } from "../adapters/model";

interface WhatServesProps {
  adapter: Adapter;
  keeps: boolean;
  onKeeps: (keeps: boolean) => void;
}

/** What becomes of the requests of a name that serves, once its new version is checked. */
export function WhatServes({ adapter, keeps, onKeeps }: WhatServesProps) {
  const { name, traffic } = adapter;
  const now = `${name} serves ${servesText(adapter)} now`;
  const load = traffic ? `, ${counted(traffic.requests, "request")} in the last 24 hours` : "";
  if (hasDefaultAlias(adapter))
    return (
      <Alert color="blue" icon={<IconInfoCircle size={18} />} title={`${now}${load}`}>
        The new version takes no requests by itself: the alias {DEFAULT_ALIAS} says what {name}{" "}
        serves. Change it on the adapter's roll-out page.
      </Alert>
    );
  return (
    <Alert color="yellow" icon={<IconInfoCircle size={18} />} title={`${now}${load}`}>
      <Radio.Group
        aria-label="What the new version does"
        value={keeps ? "inactive" : "all"}
        onChange={(value) => onKeeps(value === "inactive")}
      >
        <Stack gap="xs">
          <Radio
            value="all"
            label={`Activate: it takes 100% of the requests for ${name} as soon as it is checked`}
          />
          <Radio
            value="inactive"
            label="Keep inactive: nothing changes until you roll it out"
            description={
              <Text span inherit>
                Sets the alias {DEFAULT_ALIAS} to {servesText(adapter)}. The new version can be
                called by its number.
              </Text>
            }
          />
        </Stack>
      </Radio.Group>
    </Alert>
  );
}
