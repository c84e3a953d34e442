import { UnstyledButton } from "@mantine/core";
import { Fragment, useState } from "react";
import { formatDate } from "../../components/format";
import { Panel } from "../../components/Panel";
import { Scrollable } from "../../components/Scrollable";
import { type Price, summary, timeline } from "./model";
import classes from "./PriceTimeline.module.css";

interface PriceTimelineProps {
  prices: readonly Price[];
  onOpen: (id: string) => void;
}

const part = (of: number) => `${of * 100}%`;

/** Versions by whom they are for, along the time; the table below has the same as text. */
export function PriceTimeline({ prices, onOpen }: PriceTimelineProps) {
  const [nowMs] = useState(Date.now);
  const { lanes, ticks, now } = timeline(prices, nowMs);
  return (
    <Panel title="Versions" note="Red line: now. Dashed: scheduled versions.">
      <Scrollable label="Timeline of versions" style={{ maxHeight: 320 }}>
        <div className={classes.chart}>
          <span />
          <div className={classes.axis} aria-hidden>
            {ticks.map(({ at, label }) => (
              <span key={label} className={classes.tick} style={{ left: part(at) }}>
                {label}
              </span>
            ))}
          </div>
          {lanes.map(({ key, label, bars }) => (
            <Fragment key={key}>
              <span className={classes.label} title={label}>
                {label}
              </span>
              <div className={classes.lane}>
                {bars.map(({ price, left, width }) => (
                  <UnstyledButton
                    key={price.id}
                    className={classes.bar}
                    data-status={price.status}
                    style={{ left: part(left), width: part(width) }}
                    title={`${summary(price)} from ${formatDate(price.effective_from)}`}
                    aria-label={`${summary(price)}, ${label}, list ${price.no}, from ${formatDate(price.effective_from)}`}
                    onClick={() => onOpen(price.id)}
                    fz="xs"
                  >
                    {summary(price)}
                  </UnstyledButton>
                ))}
                <span className={classes.now} style={{ left: part(now) }} aria-hidden />
              </div>
            </Fragment>
          ))}
        </div>
      </Scrollable>
    </Panel>
  );
}
