import { useNotifications } from "@mantine/notifications";
import { lazy, Suspense, useState } from "react";

const Toasts = lazy(() => import("./Toasts"));

/** Loads what shows notifications with the first of them; its store keeps them until then. */
export function Toaster() {
  const isWanted = useNotifications().notifications.length > 0;
  const [wasWanted, setWasWanted] = useState(false);
  if (isWanted && !wasWanted) setWasWanted(true);
  return wasWanted ? (
    <Suspense>
      <Toasts />
    </Suspense>
  ) : null;
}
