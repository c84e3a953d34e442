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
  const now = `${name} currently serves ${servesText(adapter)}`;
  const load = traffic ? `, ${counted(traffic.requests, "request")} in the last 24 hours` : "";
  if (hasDefaultAlias(adapter))
    return (
      <Alert color="blue" icon={<IconInfoCircle size={18} />} title={`${now}${load}`}>
        The new version does not receive requests automatically: the alias {DEFAULT_ALIAS} selects
        the version that serves {name}. Change it on the adapter's rollout page.
      </Alert>
    );
  return (
    <Alert color="yellow" icon={<IconInfoCircle size={18} />} title={`${now}${load}`}>
      <Radio.Group
        aria-label="Traffic for the new version"
        value={keeps ? "inactive" : "all"}
        onChange={(value) => onKeeps(value === "inactive")}
      >
        <Stack gap="xs">
          <Radio
            value="all"
            label={`Activate: it receives 100% of the requests for ${name} after it has been checked`}
          />
          <Radio
            value="inactive"
            label="Keep inactive: traffic does not change until you roll it out"
            description={
              <Text span inherit>
                Sets the alias {DEFAULT_ALIAS} to {servesText(adapter)}. You can call the new
                version by its number.
              </Text>
            }
          />
        </Stack>
      </Radio.Group>
    </Alert>
  );
}
