import { ActionIcon, Box, CopyButton, Tooltip } from "@mantine/core";
import { IconCheck, IconCopy } from "@tabler/icons-react";
import classes from "./Code.module.css";
import { Scrollable } from "./Scrollable";

/** A block of code that can be copied; it scrolls within itself. */
export function Code({ code, label }: { code: string; label: string }) {
  return (
    <Box pos="relative">
      <Scrollable label={label} className={classes.code}>
        <pre className={classes.text}>{code}</pre>
      </Scrollable>
      <CopyButton value={code}>
        {({ copied, copy }) => (
          <Tooltip label={copied ? "Copied" : "Copy"}>
            <ActionIcon
              className={classes.copy}
              variant="default"
              aria-label={`Copy: ${label}`}
              onClick={copy}
            >
              {copied ? <IconCheck size={16} /> : <IconCopy size={16} />}
            </ActionIcon>
          </Tooltip>
        )}
      </CopyButton>
    </Box>
  );
}
