/** What a tenant has chosen for itself: to change for who may, else to see. */

import { Anchor, Stack, Switch, Text } from "@mantine/core";
import { Link } from "react-router";
import { Panel } from "../../components/Panel";
import { ErrorState } from "../../components/states";
import { DaysSetting } from "./DaysSetting";
import { CONTENTS_DAYS_MAX, RESPONSES_DAYS_MAX, type Settings } from "./model";
import { useChangeSettings } from "./queries";

interface ChosenProps {
  settings: Settings;
  mayChange: boolean;
  /** For the operator, who sees nothing of what is kept. */
  isOperator?: boolean;
}

export function Chosen({ settings, mayChange, isOperator = false }: ChosenProps) {
  const whose = isOperator ? "The tenant" : "You";
  return (
    <Stack>
      <DaysSetting
        title="Prompts and answers"
        label="Keep prompts and answers"
        days={settings.keep_contents_days}
        most={CONTENTS_DAYS_MAX}
        mayChange={mayChange}
        bodyOf={(keep_contents_days) => ({ keep_contents_days })}
        deletion={{
          label: "Delete what is kept",
          question: "Delete all kept prompts and answers?",
          says: "All prompts and answers that are kept are deleted now. This cannot be undone.",
          body: { delete_kept_contents: true },
        }}
      >
        {whose} can have the prompts and answers of requests kept, encrypted, for some days. The
        operator cannot read them.{" "}
        {!isOperator && (
          <>
            Each of{" "}
            <Anchor component={Link} to="/requests" inherit underline="always">
              your requests
            </Anchor>{" "}
            shows what is kept of it.
          </>
        )}
      </DaysSetting>
      <Drafting settings={settings} mayChange={mayChange} />
      {settings.stored_responses_allowed !== undefined && (
        <StoredResponses settings={settings} mayChange={mayChange} />
      )}
    </Stack>
  );
}

function Drafting({ settings, mayChange }: ChosenProps) {
  const change = useChangeSettings(() => undefined);
  const isOn = settings.draft_from_answers;
  return (
    <Panel title="Faster repeated answers" note={isOn ? "On" : "Off"}>
      <Stack gap="sm" maw={720}>
        <Text size="sm">
          Earlier answers of this account are used as drafts for later ones (speculative decoding).
          Answers that repeat earlier ones come sooner; what they say stays the same. Answers are
          held in memory for this account alone and are not stored.
        </Text>
        {mayChange && (
          <Switch
            label="Draft from earlier answers"
            checked={isOn}
            disabled={change.isPending}
            onChange={(event) => change.mutate({ draft_from_answers: event.currentTarget.checked })}
          />
        )}
        {change.error && <ErrorState error={change.error} title="The setting was not saved" />}
      </Stack>
    </Panel>
  );
}

function StoredResponses({ settings, mayChange }: ChosenProps) {
  const isAllowed = settings.stored_responses_allowed === true;
  return (
    <DaysSetting
      title="Stored responses"
      label="Store responses"
      days={settings.stored_response_days ?? null}
      most={RESPONSES_DAYS_MAX}
      mayChange={mayChange}
      forbidden={
        isAllowed ? undefined : "The plan does not allow stored responses. Ask the operator."
      }
      bodyOf={(stored_response_days) => ({ stored_response_days })}
      deletion={{
        label: "Delete stored responses",
        question: "Delete all stored responses?",
        says: "All stored responses are deleted now, and no later request can refer to them. This cannot be undone.",
        body: { delete_stored_responses: true },
      }}
    >
      Responses of <code>/v1/responses</code> are stored, encrypted, so that later requests can
      continue them by <code>previous_response_id</code>.
    </DaysSetting>
  );
}
