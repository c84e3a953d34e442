import "@mantine/notifications/styles.css";
import { Notifications } from "@mantine/notifications";

/** Where what has just been done is confirmed. */
export default function Toasts() {
  return <Notifications position="top-right" />;
}
