import { Badge, Tooltip } from "@mantine/core";
import { useEffect, useState } from "react";
import { formatAgo } from "../components/format";
import { useLive } from "./context";

/** Whether what is shown is kept up to date, and how old it is where it is not. */
export function LiveBadge() {
  const { status, heardAt } = useLive();
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1_000);
    return () => clearInterval(timer);
  }, []);
  const isLive = status === "live";
  const age = heardAt === null ? null : formatAgo(heardAt / 1000, now / 1000);
  return (
    <Tooltip
      label={
        isLive
          ? "This page receives updates as they happen."
          : "The connection for live updates is lost. The data is as old as shown; reconnecting automatically."
      }
    >
      <Badge
        color={isLive ? "teal" : status === "connecting" ? "gray" : "orange"}
        role="status"
        aria-live="off"
        data-testid="live"
      >
        {isLive
          ? "live"
          : status === "connecting"
            ? "connecting"
            : `disconnected, ${age ?? "no data yet"}`}
      </Badge>
    </Tooltip>
  );
}
